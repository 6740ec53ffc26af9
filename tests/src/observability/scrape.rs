//! One scrape of `/metrics`, as Prometheus takes it.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::server::ServerProcess;

/// Values by series: a name, with labels in braces if it has any.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scrape(pub(super) BTreeMap<String, f64>);

impl Scrape {
    pub(crate) fn of(server: &ServerProcess) -> Self {
        let text = get(server.admin, "/metrics");
        let (head, body) = text.split_once("\r\n\r\n").expect("a head and a body");
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        Self::parse(body)
    }

    fn parse(text: &str) -> Self {
        let samples = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
        let parsed = samples.map(|line| {
            let (series, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("a sample: {line}"));
            (series.to_owned(), value.parse().unwrap_or_else(|_| panic!("a number: {line}")))
        });
        Self(parsed.collect())
    }

    /// Returns the sum over all series of a metric that have these labels.
    pub(crate) fn sum(&self, metric: &str, labels: &[(&str, &str)]) -> f64 {
        let is_selected = |series: &str| {
            let (name, all) = series.split_once('{').unwrap_or((series, ""));
            name == metric && labels.iter().all(|(name, value)| all.contains(&format!("{name}=\"{value}\"")))
        };
        self.0.iter().filter(|(series, _)| is_selected(series)).map(|(_, value)| value).sum()
    }
}

/// True if a series is a counter, which only grows.
pub(super) fn is_counter(series: &str) -> bool {
    let name = series.split('{').next().unwrap_or_default();
    ["_total", "_bucket", "_count", "_sum"].iter().any(|end| name.ends_with(end))
}

/// Returns the whole response to a GET, which needs no signature.
fn get(server: SocketAddr, path: &str) -> String {
    let request = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect(server)?;
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        stream.write_all(
            format!("GET {path} HTTP/1.1\r\nhost: mlgw\r\nconnection: close\r\n\r\n").as_bytes(),
        )?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    request().unwrap_or_else(|error| panic!("GET {path} of {server}: {error}"))
}

#[test]
fn series_are_parsed_with_their_labels() {
    let text = "# HELP a b\n# TYPE a counter\na_total{x=\"1 2\",y=\"z\"} 3\na_total{x=\"4\",y=\"z\"} 1.5\n\
        b 2\n# EOF\n";
    let scrape = Scrape::parse(text);
    assert!((scrape.sum("a_total", &[("y", "z")]) - 4.5).abs() < 1e-9);
    assert!((scrape.sum("a_total", &[("x", "1 2")]) - 3.0).abs() < 1e-9);
    assert!(is_counter("a_total{x=\"1\"}") && !is_counter("b"));
}
