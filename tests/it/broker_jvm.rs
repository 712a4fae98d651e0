//! How the JVM of a broker is started.
//!
//! Invariant: what tests measure beside brokers is not what their compilers take.

/// How the JVM of a broker is started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum BrokerJvm {
    /// For one that is alone.
    #[default]
    Alone,
    /// For one of several that share two processors.
    OneOfSeveral,
    /// As Kafka's operations guide advises.
    FullSize,
}

impl BrokerJvm {
    /// Its options.
    pub(crate) fn options(self) -> &'static [&'static str] {
        match self {
            Self::Alone => &ALONE,
            Self::OneOfSeveral => &ONE_OF_SEVERAL,
            Self::FullSize => &FULL_SIZE,
        }
    }
}

/// A broker of a cluster, or a tool. With all stages of its compiler each of several brokers spends
/// most of its minutes on compiling, starts three times as slowly, and what runs beside it waits.
const ONE_OF_SEVERAL: [&str; 3] = ["-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"];

/// A broker that is alone has time for the last stage, for what it does most: without it, it needs
/// more of a processor from then on. The thresholds are eight times the defaults.
const ALONE: [&str; 6] = [
    "-Xmx512m",
    "-XX:+UseSerialGC",
    "-XX:Tier4InvocationThreshold=40000",
    "-XX:Tier4MinInvocationThreshold=5000",
    "-XX:Tier4CompileThreshold=120000",
    "-XX:Tier4BackEdgeThreshold=320000",
];

/// The JVM that Kafka's operations guide advises ("Java version"). In the 1 GiB of
/// `kafka-server-start.sh` the broker collects garbage three times as often, for 12 to 40 ms.
const FULL_SIZE: [&str; 11] = [
    "-server",
    "-Xms6g",
    "-Xmx6g",
    "-XX:MetaspaceSize=96m",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:G1HeapRegionSize=16M",
    "-XX:MinMetaspaceFreeRatio=50",
    "-XX:MaxMetaspaceFreeRatio=80",
    "-XX:+ExplicitGCInvokesConcurrent",
];
