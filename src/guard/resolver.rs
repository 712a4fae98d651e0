//! Look-ups of names, with a limit on how many are in progress.
//!
//! Invariant: a lookup keeps its permits until the system has ended it, which may be long after the
//! attempt timed out. Each is a blocked thread: names whose servers never answer must not use up
//! all threads. An attempt that ends while it waits for a permit gets none.

use std::net::{IpAddr, ToSocketAddrs as _};
use std::num::NonZeroUsize;
use std::sync::Arc;

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};
use tokio::task::spawn_blocking;

use super::BoxError;

/// Looks up names for callbacks.
pub(super) struct Lookups {
    resolver: Arc<dyn Resolve>,
    permits: Arc<Semaphore>,
}

impl Lookups {
    pub(super) fn new(resolver: Arc<dyn Resolve>, permits: NonZeroUsize) -> Self {
        Self { resolver, permits: Arc::new(Semaphore::new(permits.get())) }
    }

    /// A permit for one lookup.
    pub(super) async fn permit(&self) -> Result<OwnedSemaphorePermit, AcquireError> {
        Arc::clone(&self.permits).acquire_owned().await
    }

    /// The addresses of a name. The lookup continues if the caller stops waiting, and holds these
    /// permits until it ends.
    pub(super) async fn addresses(
        &self,
        name: Name,
        permits: impl Send + 'static,
    ) -> Result<Vec<IpAddr>, BoxError> {
        let found = self.resolver.resolve(name);
        let lookup = tokio::spawn(async move {
            let _until_it_ends = permits;
            found.await
        });
        Ok(lookup.await??.map(|address| address.ip()).collect())
    }
}

/// The system's resolver. Each lookup is a blocked thread.
pub(super) struct SystemResolver;

impl Resolve for SystemResolver {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let found = spawn_blocking(move || (name.as_str(), 0).to_socket_addrs()).await??;
            Ok(Box::new(found) as Addrs)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    const SHORT: Duration = Duration::from_millis(50);
    const DEADLINE: Duration = Duration::from_secs(30);

    /// Answers when it has a permit of the test.
    struct HeldResolver(Arc<Semaphore>);

    impl Resolve for HeldResolver {
        fn resolve(&self, _: Name) -> Resolving {
            let held = Arc::clone(&self.0);
            Box::pin(async move {
                let _permit = held.acquire_owned().await?;
                Ok(Box::new(std::iter::empty()) as Addrs)
            })
        }
    }

    #[tokio::test]
    async fn a_lookup_without_a_permit_waits() {
        let lookups = Lookups::new(Arc::new(SystemResolver), NonZeroUsize::MIN);
        let first = lookups.permit().await.unwrap();
        assert!(timeout(SHORT, lookups.permit()).await.is_err());
        drop(first);
        let permit = timeout(DEADLINE, lookups.permit()).await.unwrap().unwrap();
        let found = lookups.addresses("localhost".parse().unwrap(), permit).await.unwrap();
        assert!(!found.is_empty());
        assert_eq!(lookups.permits.available_permits(), 1);
    }

    #[tokio::test]
    async fn a_lookup_keeps_its_permit_until_it_ends() {
        let held = Arc::new(Semaphore::new(0));
        let resolver = Arc::new(HeldResolver(Arc::clone(&held)));
        let lookups = Lookups::new(resolver, NonZeroUsize::MIN);
        let permit = lookups.permit().await.unwrap();
        let lookup = lookups.addresses("a.test".parse().unwrap(), permit);
        assert!(timeout(SHORT, lookup).await.is_err());
        assert_eq!(lookups.permits.available_permits(), 0);
        held.add_permits(1);
        let _permit = timeout(DEADLINE, lookups.permit()).await.unwrap().unwrap();
    }
}
