//! The fault proxy as a program, for benchmarks and by hand: `mlgw-fault-proxy --to 127.0.0.1:9000 --delay
//! 20ms`.
//!
//! The first line that it prints is the address of the proxy, the second that of the control port if there is
//! to be one. It runs until it is killed.

use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use clap::Parser;
use mlgw_tests::proxy::{FaultProxy, Shape, units};

/// Stands before an S3 origin, makes it slow and, by rules that its control port takes, faulty.
#[derive(Parser)]
struct Arguments {
    /// Where to listen; port 0 for a free one
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// The origin
    #[arg(long)]
    to: SocketAddr,
    /// Where to open the control port: GET /counters and /log, POST /rules, /shape and /clear
    #[arg(long)]
    control: Option<SocketAddr>,
    /// The wait before each request is sent on, as 20ms
    #[arg(long, default_value = "0s", value_parser = units::duration)]
    delay: Duration,
    /// Bytes of bodies a second on each connection, each way, as 60MB; 0 for as many as can be
    #[arg(long, default_value = "0", value_parser = units::bytes)]
    connection_rate: u64,
    /// Bytes of bodies a second on all connections together, each way
    #[arg(long, default_value = "0", value_parser = units::bytes)]
    total_rate: u64,
}

fn main() -> io::Result<()> {
    let arguments = Arguments::parse();
    let proxy = FaultProxy::start_at(arguments.listen, arguments.to)?;
    let Arguments { delay, connection_rate, total_rate, .. } = arguments;
    proxy.set_shape(Shape { delay, connection_rate, total_rate });
    let control = arguments.control.map(|listen| proxy.control_at(listen)).transpose()?;
    let mut out = io::stdout().lock();
    writeln!(out, "{}", proxy.addr())?;
    if let Some(control) = control {
        writeln!(out, "{control}")?;
    }
    out.flush()?;
    drop(out);
    loop {
        thread::park();
    }
}
