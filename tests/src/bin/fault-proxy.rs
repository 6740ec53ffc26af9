//! The fault proxy as a program, for benchmarks and by hand: `mlgw-fault-proxy --to 127.0.0.1:9000 --delay
//! 20ms`.
//!
//! The first line of its output is the address of the proxy; the second is the address of the control port,
//! if one was requested. The program runs until it is killed.

use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use clap::Parser;
use mlgw_tests::proxy::{FaultProxy, TrafficShape, units};

/// Proxy before an S3 origin that slows it down and, by rules sent to its control port, injects faults.
#[derive(Parser)]
struct Arguments {
    /// Address to listen on; port 0 for a free one
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// The origin
    #[arg(long)]
    to: SocketAddr,
    /// Address of the control port: GET /counters and /log, POST /rules, /shape and /clear
    #[arg(long)]
    control: Option<SocketAddr>,
    /// The delay before each request is forwarded, as 20ms
    #[arg(long, default_value = "0s", value_parser = units::duration)]
    delay: Duration,
    /// Bytes of bodies per second on each connection, each way, as 60MB; 0 for no limit
    #[arg(long, default_value = "0", value_parser = units::bytes)]
    connection_rate: u64,
    /// Bytes of bodies per second on all connections together, each way; 0 for no limit
    #[arg(long, default_value = "0", value_parser = units::bytes)]
    total_rate: u64,
}

fn main() -> io::Result<()> {
    let arguments = Arguments::parse();
    let proxy = FaultProxy::start_at(arguments.listen, arguments.to)?;
    let Arguments { delay, connection_rate, total_rate, .. } = arguments;
    proxy.set_shape(TrafficShape { delay, connection_rate, total_rate });
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
