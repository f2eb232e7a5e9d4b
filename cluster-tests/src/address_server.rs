//! A small HTTP server that tells nodes who the members are.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Longest time that a request may take.
const REQUEST: Duration = Duration::from_secs(5);

/// What the server answers to every request.
#[derive(Clone, Debug)]
struct Answer {
    status: u16,
    body: String,
}

/// A running server; stops when dropped.
#[derive(Debug)]
pub struct AddressServer {
    address: SocketAddr,
    answer: Arc<Mutex<Answer>>,
    task: JoinHandle<()>,
}

impl AddressServer {
    /// A server that answers 404 until it is told what to tell.
    ///
    /// # Errors
    /// As the operating system says.
    pub async fn start() -> io::Result<Arc<Self>> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let answer = Arc::new(Mutex::new(Answer {
            status: 404,
            body: String::new(),
        }));
        let told = Arc::clone(&answer);
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let answer = told.lock().clone();
                tokio::spawn(timeout(REQUEST, serve(stream, answer)));
            }
        });
        Ok(Arc::new(AddressServer {
            address,
            answer,
            task,
        }))
    }

    /// What nodes are to ask for.
    pub fn url(&self) -> String {
        format!("http://{}/nacos/serverlist", self.address)
    }

    /// Answers this list from now on.
    pub fn tell(&self, body: &str) {
        *self.answer.lock() = Answer {
            status: 200,
            body: body.to_owned(),
        };
    }

    /// Answers with a failure from now on.
    pub fn fail(&self) {
        self.answer.lock().status = 500;
    }
}

impl Drop for AddressServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(mut stream: TcpStream, answer: Answer) -> io::Result<()> {
    let mut request = Vec::new();
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        if stream.read_buf(&mut request).await? == 0 {
            return Ok(());
        }
    }
    let Answer { status, body } = answer;
    let head = format!(
        "HTTP/1.1 {status} Told\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all((head + &body).as_bytes()).await?;
    stream.shutdown().await
}
