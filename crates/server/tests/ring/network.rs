//! The simulated network behind the server's own traits.

use std::io;
use std::net::SocketAddr;

use hyper_util::rt::TokioIo;
use rollcall_server::sockets::{Accepted, Dialed, Dialer, Dialing, Listener};
use tonic::transport::{Channel, Endpoint};
use tower::service_fn;
use turmoil::net::{TcpListener, TcpStream};

/// A bound port of a simulated host.
pub(crate) struct SimListener(TcpListener);

impl SimListener {
    pub(crate) async fn bind(port: u16) -> io::Result<Self> {
        TcpListener::bind(("0.0.0.0", port)).await.map(SimListener)
    }
}

impl Listener for SimListener {
    type Stream = TcpStream;

    async fn accept(&self) -> io::Result<Accepted<TcpStream>> {
        let (stream, remote) = self.0.accept().await?;
        let local = stream.local_addr()?;
        Ok(Accepted {
            stream,
            remote,
            local,
        })
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }
}

/// Reaches hosts by their addresses.
pub(crate) struct SimNetwork;

impl Dialer for SimNetwork {
    fn look_up<'a>(&'a self, target: &'a str) -> Dialing<'a, Vec<SocketAddr>> {
        let address = target.parse().map_err(io::Error::other);
        Box::pin(async move { Ok(vec![address?]) })
    }

    fn connect(&self, address: SocketAddr) -> Dialing<'_, Dialed> {
        Box::pin(async move { Ok(Box::new(TcpStream::connect(address).await?) as Dialed) })
    }
}

/// A gRPC channel that is one connection.
pub(crate) async fn channel(address: SocketAddr) -> Result<Channel, tonic::transport::Error> {
    let connector = service_fn(move |_| async move {
        let stream = TcpStream::connect(address).await?;
        Ok::<_, io::Error>(TokioIo::new(stream))
    });
    Endpoint::from_static("http://node.rollcall")
        .connect_with_connector(connector)
        .await
}
