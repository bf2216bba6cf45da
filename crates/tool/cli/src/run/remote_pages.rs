//! Servers and object stores that keep pages of `run --resident`.

use std::fmt;
use std::time::Duration;

use fieldstone_paging::{Device, RedisServer};

/// Makes the device of a process.
type Open = dyn Fn() -> anyhow::Result<Box<dyn Device>> + Send + Sync;

/// A server or an object store.
pub(super) struct RemotePages {
    shown: String,
    open: Box<Open>,
    /// For how long a request is repeated.
    pub(super) timeout: Duration,
}

impl fmt::Display for RemotePages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl RemotePages {
    /// The pages of one more process, which never get those of another.
    pub(super) fn open(&self) -> anyhow::Result<Box<dyn Device>> {
        (self.open)()
    }

    /// Connects to a Redis server.
    pub(super) fn on_redis(url: &str, timeout: Duration) -> anyhow::Result<Self> {
        let server = RedisServer::new(url, timeout)?;
        server.check()?;
        let (shown, url) = (server.to_string(), url.to_owned());
        let open = move || Ok(Box::new(RedisServer::new(&url, timeout)?) as Box<dyn Device>);
        Ok(Self { shown, open: Box::new(open), timeout })
    }

    /// Connects to an object store.
    #[cfg(feature = "opendal")]
    pub(super) fn in_objects(address: &str, timeout: Duration) -> anyhow::Result<Self> {
        use fieldstone_paging::ObjectStorage;
        use fieldstone_wire::Remedy;

        opendal_http_transport_reqwest::install_default();
        // The encryption of its connections; an error is that it is chosen already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let operator = match opendal::Operator::from_uri(address) {
            Ok(operator) => operator,
            Err(error) => {
                let shown = address.split('?').next().unwrap_or_default();
                let remedy = Remedy(Some("opendal:s3://BUCKET/DIRECTORY?region=REGION, or opendal:fs:///DIRECTORY"));
                anyhow::bail!("cannot use the object store {shown}: {error}{remedy}")
            }
        };
        let storage = ObjectStorage::new(operator.clone(), timeout)?;
        storage.check()?;
        let open = move || Ok(Box::new(ObjectStorage::new(operator.clone(), timeout)?) as Box<dyn Device>);
        Ok(Self { shown: storage.to_string(), open: Box::new(open), timeout })
    }

    #[cfg(not(feature = "opendal"))]
    pub(super) fn in_objects(_address: &str, _timeout: Duration) -> anyhow::Result<Self> {
        let remedy = fieldstone_wire::Remedy(Some("cargo build --release -p fieldstone --features opendal"));
        anyhow::bail!("cannot store pages in an object store: this fieldstone was built without them{remedy}")
    }
}
