//! A server that echoes and a client of it on tokio's threads: a thousand round trips, then
//! silence, in which all use no CPU.

use rustix::time::{clock_gettime, ClockId};
use std::io::Result;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

fn cpu() -> Duration {
    let used = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(used.tv_sec as u64, used.tv_nsec as u32)
}

async fn echo(mut from: TcpStream) -> Result<()> {
    let mut bytes = [0; 100];
    loop {
        let count = from.read(&mut bytes).await?;
        if count == 0 {
            return Ok(());
        }
        from.write_all(&bytes[..count]).await?;
    }
}

async fn serve(listener: TcpListener) -> Result<()> {
    loop {
        tokio::spawn(echo(listener.accept().await?.0));
    }
}

#[tokio::main(worker_threads = 4)]
async fn main() -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let mut client = TcpStream::connect(listener.local_addr()?).await?;
    tokio::spawn(serve(listener));
    let mut bytes = [0; 5];
    for _ in 0..1000 {
        client.write_all(b"hello").await?;
        client.read_exact(&mut bytes).await?;
        assert_eq!(&bytes, b"hello", "FAILED");
    }
    // A host that is busy takes time from a thread while it looks at the clock: one of several
    // tries tells.
    let quiet = Duration::from_secs(1);
    for _ in 0..10 {
        let before = cpu();
        tokio::time::sleep(quiet).await;
        let used = cpu() - before;
        println!("idle for {quiet:?} with {used:?} of CPU");
        if used < quiet / 100 {
            println!("under one hundredth");
            break;
        }
    }
    Ok(())
}
