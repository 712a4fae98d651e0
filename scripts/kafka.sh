#!/bin/sh
# Fetches Apache Kafka's own jars, its tools among them, once into the cache and prints the folder that holds them.
set -eu

# Of several versions each has a folder of its own: `make test-brokers` needs three.
version=${ORLOJ_TEST_KAFKA_VERSION:-4.1.1}
cache=${ORLOJ_CACHE:-$HOME/.cache/orloj}
home=$cache/kafka-$version-with-tools

if [ -d "$home/libs" ]; then
    echo "$home/libs"
    exit 0
fi

mkdir -p "$cache"
# Fetched beside its place and moved in one step: a fetch cut short leaves nothing half done.
staging=$(mktemp -d "$cache/kafka-$version.XXXXXX")
trap 'rm -rf "$staging"' EXIT INT TERM

cat >"$staging/pom.xml" <<POM
<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>orloj</groupId>
  <artifactId>kafka-for-tests</artifactId>
  <version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId>
      <artifactId>kafka_2.13</artifactId>
      <version>$version</version>
    </dependency>
    <dependency>
      <groupId>org.apache.kafka</groupId>
      <artifactId>kafka-tools</artifactId>
      <version>$version</version>
    </dependency>
    <!-- Kafka logs through SLF4J 1.7 and leaves the binding to the distribution. -->
    <dependency>
      <groupId>org.apache.logging.log4j</groupId>
      <artifactId>log4j-slf4j-impl</artifactId>
      <version>2.24.3</version>
    </dependency>
  </dependencies>
</project>
POM

echo "fetching Apache Kafka $version into $home" >&2
mvn --batch-mode --quiet -Dstyle.color=never --file "$staging/pom.xml" dependency:copy-dependencies \
    -DincludeScope=runtime -DoutputDirectory="$staging/libs" </dev/null >&2
chmod 755 "$staging"
# Another process may have been faster; its copy is as good.
mv -T "$staging" "$home" 2>/dev/null || [ -d "$home/libs" ]
echo "$home/libs"
