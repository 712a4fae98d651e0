//! The system's resolver, with a limit on concurrent lookups.
//!
//! Invariant: a lookup keeps its permit until the system has ended it, which may be long after the
//! attempt timed out. Each is a blocked thread: names whose servers never answer must not use up
//! all threads.

use std::net::ToSocketAddrs as _;
use std::num::NonZeroUsize;
use std::sync::Arc;

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

pub(super) struct SystemResolver {
    permits: Arc<Semaphore>,
}

impl SystemResolver {
    pub(super) fn new(permits: NonZeroUsize) -> Self {
        Self { permits: Arc::new(Semaphore::new(permits.get())) }
    }
}

impl Resolve for SystemResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let places = Arc::clone(&self.permits);
        Box::pin(async move {
            let permit = places.acquire_owned().await?;
            let look_up = move || {
                let _until_it_ends = permit;
                (name.as_str(), 0).to_socket_addrs()
            };
            let found = spawn_blocking(look_up).await??;
            Ok(Box::new(found) as Addrs)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn a_lookup_without_a_permit_waits() {
        let resolver = SystemResolver::new(NonZeroUsize::MIN);
        let place = Arc::clone(&resolver.permits).acquire_owned().await.unwrap();
        let mut lookup = resolver.resolve("localhost".parse().unwrap());
        assert!(timeout(Duration::from_millis(50), &mut lookup).await.is_err());
        drop(place);
        assert!(lookup.await.unwrap().count() > 0);
        assert_eq!(resolver.permits.available_permits(), 1);
    }
}
