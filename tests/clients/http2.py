"""HTTP/2 for tests of the wire format: one connection for each request, every frame checked.

The h2 package keeps the state of the protocol and raises an error if a response violates it, as with a body
behind the response to a HEAD. Over http the connection begins with HTTP/2 directly; over https it is
negotiated.
"""

import socket
import ssl

import h2.config
import h2.connection
import h2.events

TIMEOUT_SECONDS = 30
# Headers of one connection, which HTTP/2 does not use.
CONNECTION_HEADERS = ("connection", "transfer-encoding", "keep-alive", "upgrade", "expect")


class Connection:
    """A connection over which a test may send requests one after the other."""

    def __init__(self, server):
        server = server.turn()
        host, port = server.host.split(":")
        self.scheme = server.scheme
        self.socket = socket.create_connection((host, int(port)), timeout=TIMEOUT_SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if server.certificates:
            context = ssl.create_default_context(cafile=str(server.certificates.authority))
            context.set_alpn_protocols(["h2"])
            self.socket = context.wrap_socket(self.socket, server_hostname="localhost")
            assert self.socket.selected_alpn_protocol() == "h2"
        config = h2.config.H2Configuration(client_side=True, header_encoding="latin-1")
        self.state = h2.connection.H2Connection(config)
        self.state.initiate_connection()
        self.flush()
        self.answers = {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def flush(self):
        self.socket.sendall(self.state.data_to_send())

    def begin(self, method, target, headers, ends):
        """Sends a head; returns the number of its stream."""
        stream = self.state.get_next_available_stream_id()
        self.answers[stream] = {"head": None, "body": b"", "ended": False, "reset": None}
        host = next(value for name, value in headers if name.lower() == "host")
        lines = [(":method", method), (":scheme", self.scheme), (":authority", host), (":path", target)]
        kept = [(name.lower(), value) for name, value in headers]
        lines += [(name, value) for name, value in kept if name not in (*CONNECTION_HEADERS, "host")]
        self.state.send_headers(stream, lines, end_stream=ends)
        self.flush()
        return stream

    def send_body(self, stream, body, ends=True):
        """Sends a body until the response ends the stream."""
        while body and not self.is_over(stream):
            room = self.state.local_flow_control_window(stream)
            room = min(room, self.state.max_outbound_frame_size)
            if room == 0:
                self.receive()
                continue
            self.state.send_data(stream, body[:room])
            self.flush()
            body = body[room:]
        if ends and not self.is_over(stream):
            self.state.end_stream(stream)
            self.flush()

    def is_over(self, stream):
        return self.answers[stream]["reset"] is not None

    def receive(self):
        data = self.socket.recv(1 << 16)
        assert data, "the server closed the connection"
        for event in self.state.receive_data(data):
            answer = self.answers.get(getattr(event, "stream_id", None))
            if isinstance(event, h2.events.ResponseReceived):
                answer["head"] = [(str(name), str(value)) for name, value in event.headers]
            elif isinstance(event, h2.events.DataReceived):
                answer["body"] += event.data
                if event.flow_controlled_length:
                    self.state.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            elif isinstance(event, h2.events.StreamEnded):
                answer["ended"] = True
            elif isinstance(event, h2.events.StreamReset):
                answer["reset"] = event.error_code
            elif isinstance(event, h2.events.ConnectionTerminated):
                raise AssertionError(f"the server ends the connection: {event.error_code}")
        self.flush()

    def read_answer(self, stream):
        """Returns status, headers and body of a stream's response. A reset before its end fails the test."""
        answer = self.answers[stream]
        while not answer["ended"]:
            assert answer["reset"] is None, f"the stream was reset: {answer}"
            self.receive()
        status = int(dict(answer["head"])[":status"])
        return status, [(name, value) for name, value in answer["head"] if name != ":status"], answer["body"]

    def exchange(self, method, target, headers, body=b""):
        stream = self.begin(method, target, headers, ends=not body)
        if body:
            self.send_body(stream, body)
        return self.read_answer(stream)
