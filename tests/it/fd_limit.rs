//! Open files, of which a test with thousands of connections needs many.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Beyond those that a test asks for: brokers, logs, and whatever else runs beside it.
const OTHERS: u64 = 1_000;

/// Lets this process, and those that it starts, open so many files.
pub(crate) fn raise_open_files_limit(count: usize) {
    let wanted = u64::try_from(count).unwrap() + OTHERS;
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= wanted) {
        return;
    }
    assert!(
        limit.maximum.is_none_or(|maximum| maximum >= wanted),
        "this test needs {wanted} open files: `ulimit -Hn` says {:?}",
        limit.maximum
    );
    setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), ..limit }).unwrap();
}
