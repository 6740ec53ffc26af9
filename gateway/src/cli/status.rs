//! `mlgw status`

use super::client::Client;
use super::output::{Out, pairs};
use super::{CliError, Global, discover};
use crate::admin::{SettingList, Status};
use crate::config::ByteSize;
use http::Method;

pub(super) async fn run(metrics: bool, global: &Global, out: Out) -> Result<(), CliError> {
    let target = discover::target(global)?;
    if metrics {
        let endpoint = match metrics_endpoint(&Client::new(target.clone())?).await? {
            Some(endpoint) => endpoint,
            None => target.endpoint.clone(),
        };
        let client = Client::new(discover::Target { endpoint, ..target })?;
        let text = client.send(Method::GET, "/metrics", None::<&()>).await?;
        return out.text(&String::from_utf8_lossy(&text));
    }
    let status = Client::new(target)?.get::<Status>("/v1/status").await?;
    out.document(&status, show)
}

/// Where metrics are served, when that is not the admin API.
async fn metrics_endpoint(client: &Client) -> Result<Option<String>, CliError> {
    let settings: SettingList = client.get("/v1/config").await?;
    let listen = settings.settings.into_iter().find(|setting| setting.key == "metrics.listen");
    let listen = listen.map(|setting| setting.value.trim_matches('"').to_owned());
    Ok(listen.filter(|listen| !listen.is_empty()).map(|listen| {
        let local = listen.replace("0.0.0.0:", "127.0.0.1:").replace("[::]:", "[::1]:");
        format!("http://{local}")
    }))
}

fn show(status: &Status) -> String {
    let hot = &status.hot;
    pairs(&[
        ("state", status.state.clone()),
        ("version", status.version.clone()),
        ("node", status.node.clone()),
        ("up", format!("{} s, since {}", status.uptime_seconds, status.started)),
        ("data", format!("{}, durability {}", status.data_dir, status.durability)),
        ("s3", status.s3.endpoint.clone()),
        (
            "load",
            format!(
                "{} connections, {} requests in flight",
                status.s3.connections, status.s3.inflight_requests
            ),
        ),
        (
            "catalogue",
            format!(
                "{} buckets, {} access keys, {} of log",
                status.catalogue.buckets,
                status.catalogue.access_keys,
                ByteSize(status.catalogue.log_bytes).human()
            ),
        ),
        (
            "hot tier",
            format!(
                "{} of {} used, room for {}",
                ByteSize(hot.used_bytes).human(),
                ByteSize(hot.capacity_bytes).human(),
                ByteSize(hot.room_bytes).human()
            ),
        ),
        ("corrupt", format!("{} blocks since the start", hot.corrupt_blocks)),
    ])
}
