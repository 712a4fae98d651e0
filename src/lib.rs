//! Orloj: a Kafka-native scheduler that makes things happen later.
