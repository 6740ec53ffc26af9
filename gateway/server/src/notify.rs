//! Notifies systemd of the state of the server (`Type=notify`): one datagram, without a library.

use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// State of the server reported to systemd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServiceState {
    /// Requests are served, or refused by a node that waits for a majority.
    Ready,
    /// The server is stopping.
    Stopping,
}

/// Sends the state to the service manager, if there is one.
pub fn notify(state: ServiceState) {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let socket = socket.to_string_lossy();
    if let Err(error) = send(&socket, state) {
        tracing::warn!(%error, %socket, "cannot notify the service manager");
    }
}

fn send(socket: &str, state: ServiceState) -> std::io::Result<()> {
    let address = match socket.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(socket)?,
    };
    let text = match state {
        ServiceState::Ready => "READY=1",
        ServiceState::Stopping => "STOPPING=1",
    };
    UnixDatagram::unbound()?.send_to_addr(text.as_bytes(), &address).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::{ServiceState, send};
    use std::os::unix::net::UnixDatagram;

    #[test]
    fn the_service_manager_is_notified_that_the_server_is_ready() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        send(path.to_str().unwrap(), ServiceState::Ready).unwrap();
        let mut received = [0; 16];
        let length = manager.recv(&mut received).unwrap();
        assert_eq!(&received[..length], b"READY=1");
    }
}
