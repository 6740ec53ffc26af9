//! Facts about the server that policies can use: its environment and its current state.
//!
//! The types are pure data, filled in by the caller. An unknown fact is `None`, and conditions on it are
//! false.

use mlgw_policies::language::{Environment, Fact, Facts, Property, Word as _};
use std::time::Duration;

/// Facts that do not change while a server runs. Hardware profiles use these.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerProfile {
    /// Environment, if configured.
    pub environment: Option<Environment>,
    /// Number of accelerators of the machines that read, if configured.
    pub gpu_count: Option<u64>,
    /// Memory of this machine, in bytes.
    pub memory_bytes: u64,
}

impl ServerProfile {
    fn property_fact(&self, property: Property) -> Option<Fact<'static>> {
        match property {
            Property::Environment => self.environment.map(|one| Fact::Text(one.name())),
            #[expect(clippy::cast_precision_loss, reason = "accelerator counts stay below 2^53")]
            Property::GpuCount => self.gpu_count.map(|count| Fact::Number(count as f64)),
            Property::Memory => Some(Fact::Bytes(self.memory_bytes)),
            _ => None,
        }
    }
}

impl Facts for ServerProfile {
    fn fact(&self, property: Property, _: &str) -> Option<Fact<'_>> {
        self.property_fact(property)
    }
}

/// Current state of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SystemFacts {
    /// Facts that do not change.
    pub server: ServerProfile,
    /// Fill level of the hot tier in percent.
    pub hot_fill: Option<f64>,
    /// Fill level of the cold tier in percent; `None` without a cold tier.
    pub cold_fill: Option<f64>,
    /// Fill level of the space for clean copies in percent; `None` if there is no such space.
    pub copies_fill: Option<f64>,
    /// Fill level of the memory tier in percent; `None` without a memory tier.
    pub memory_fill: Option<f64>,
    /// Current read rate of remote-backed buckets from upstreams, in bytes a second; `None` without
    /// upstreams.
    pub bandwidth: Option<u64>,
    /// Recent time to the first byte from upstreams; `None` if there were no requests.
    pub upstream_latency: Option<Duration>,
}

impl SystemFacts {
    /// Returns the fact for a property.
    #[must_use]
    pub fn property_fact(&self, property: Property) -> Option<Fact<'static>> {
        match property {
            Property::HotFill => self.hot_fill.map(Fact::Percent),
            Property::ColdFill => self.cold_fill.map(Fact::Percent),
            Property::CopiesFill => self.copies_fill.map(Fact::Percent),
            Property::MemoryFill => self.memory_fill.map(Fact::Percent),
            Property::Bandwidth => self.bandwidth.map(Fact::Rate),
            Property::UpstreamLatency => self.upstream_latency.map(Fact::Duration),
            _ => self.server.property_fact(property),
        }
    }
}

impl Facts for SystemFacts {
    fn fact(&self, property: Property, _: &str) -> Option<Fact<'_>> {
        self.property_fact(property)
    }
}

/// Fill level in percent; `None` if the capacity is 0.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "a share needs no higher precision")]
pub fn percent(used: u64, capacity: u64) -> Option<f64> {
    (capacity > 0).then(|| (used as f64 / capacity as f64 * 1000.0).round() / 10.0)
}

#[cfg(test)]
mod tests {
    use super::{ServerProfile, SystemFacts, percent};
    use mlgw_policies::language::{Environment, Fact, Facts as _, Property};

    #[test]
    fn facts_of_a_server_include_its_place_and_fill_levels() {
        let place =
            ServerProfile { environment: Some(Environment::Production), gpu_count: Some(8), memory_bytes: 5 };
        let system = SystemFacts { server: place, hot_fill: percent(1, 3), ..SystemFacts::default() };
        assert_eq!(system.fact(Property::Environment, ""), Some(Fact::Text("production")));
        assert_eq!(system.fact(Property::GpuCount, ""), Some(Fact::Number(8.0)));
        assert_eq!(system.fact(Property::HotFill, ""), Some(Fact::Percent(33.3)));
        assert_eq!(system.fact(Property::ColdFill, ""), None);
        assert_eq!(percent(1, 0), None);
    }
}
