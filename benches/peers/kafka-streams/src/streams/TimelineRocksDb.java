package streams;

import java.util.Map;
import org.apache.kafka.streams.state.RocksDBConfigSetter;
import org.rocksdb.BlockBasedTableConfig;
import org.rocksdb.Cache;
import org.rocksdb.LRUCache;
import org.rocksdb.Options;
import org.rocksdb.RocksDB;

/**
 * RocksDB for a queue in time order: written once, scanned once at its front, deleted.
 *
 * <p>Kafka Streams itself turns the write-ahead log off, compacts universally and sets the number
 * of background threads; all of that suits.
 */
public final class TimelineRocksDb implements RocksDBConfigSetter {
    static {
        RocksDB.loadLibrary();
    }

    /** Shared by all partitions, so that memory does not grow with them. */
    private static final Cache BLOCKS = new LRUCache(128L << 20);

    @Override
    public void setConfig(String store, Options options, Map<String, Object> settings) {
        // Large enough that what is due within seconds is deleted before it is ever flushed.
        options.setWriteBufferSize(64L << 20);
        options.setMaxWriteBufferNumber(4);
        var table = (BlockBasedTableConfig) options.tableFormatConfig();
        table.setBlockCache(BLOCKS);
        table.setBlockSize(16L << 10);
        table.setCacheIndexAndFilterBlocks(true);
        if (store.equals(Timeline.STORE)) {
            // Only ranges are read: a filter would never be asked. The index keeps its own.
            table.setFilterPolicy(null);
        }
        options.setTableFormatConfig(table);
    }

    @Override
    public void close(String store, Options options) {}
}
