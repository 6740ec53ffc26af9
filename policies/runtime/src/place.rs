//! Where a server runs and how it is: the facts about it that policies ask for.
//!
//! Pure: whoever makes these values has looked. What is not known is none, and holds no condition.

use mlgw_policies::language::{Environment, Fact, Facts, Property, Word as _};
use std::time::Duration;

/// What stays as it is while a server runs. Hardware profiles look at this.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Where it runs, if that is said.
    pub environment: Option<Environment>,
    /// Accelerators of the machines that read, if that is said.
    pub gpu_count: Option<u64>,
    /// Memory of this machine, in bytes.
    pub memory_bytes: u64,
}

impl Place {
    fn said(&self, property: Property) -> Option<Fact<'static>> {
        match property {
            Property::Environment => self.environment.map(|one| Fact::Text(one.name())),
            #[expect(clippy::cast_precision_loss, reason = "nobody has 2^53 accelerators")]
            Property::GpuCount => self.gpu_count.map(|count| Fact::Number(count as f64)),
            Property::Memory => Some(Fact::Bytes(self.memory_bytes)),
            _ => None,
        }
    }
}

impl Facts for Place {
    fn fact(&self, property: Property, _: &str) -> Option<Fact<'_>> {
        self.said(property)
    }
}

/// How a server is just now.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SystemFacts {
    /// What stays as it is.
    pub place: Place,
    /// How full the hot tier is, in percent.
    pub hot_fill: Option<f64>,
    /// How full the cold tier is, in percent; none without one.
    pub cold_fill: Option<f64>,
    /// How full the room for clean copies is, in percent; none without any.
    pub copies_fill: Option<f64>,
    /// How full the memory tier is, in percent; none without one.
    pub memory_fill: Option<f64>,
    /// What bound buckets read from upstreams now, in bytes a second; none without upstreams.
    pub bandwidth: Option<u64>,
    /// Until upstreams begin to answer, lately; none when nothing was asked of them.
    pub upstream_latency: Option<Duration>,
}

impl SystemFacts {
    /// The fact that a property asks for.
    #[must_use]
    pub fn said(&self, property: Property) -> Option<Fact<'static>> {
        match property {
            Property::HotFill => self.hot_fill.map(Fact::Percent),
            Property::ColdFill => self.cold_fill.map(Fact::Percent),
            Property::CopiesFill => self.copies_fill.map(Fact::Percent),
            Property::MemoryFill => self.memory_fill.map(Fact::Percent),
            Property::Bandwidth => self.bandwidth.map(Fact::Rate),
            Property::UpstreamLatency => self.upstream_latency.map(Fact::Duration),
            _ => self.place.said(property),
        }
    }
}

impl Facts for SystemFacts {
    fn fact(&self, property: Property, _: &str) -> Option<Fact<'_>> {
        self.said(property)
    }
}

/// How full something is, in percent; none when it holds nothing at all.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "a share needs no more digits")]
pub fn percent(used: u64, capacity: u64) -> Option<f64> {
    (capacity > 0).then(|| (used as f64 / capacity as f64 * 1000.0).round() / 10.0)
}

#[cfg(test)]
mod tests {
    use super::{Place, SystemFacts, percent};
    use mlgw_policies::language::{Environment, Fact, Facts as _, Property};

    #[test]
    fn a_server_knows_where_it_is_and_how_full() {
        let place = Place { environment: Some(Environment::Production), gpu_count: Some(8), memory_bytes: 5 };
        let system = SystemFacts { place, hot_fill: percent(1, 3), ..SystemFacts::default() };
        assert_eq!(system.fact(Property::Environment, ""), Some(Fact::Text("production")));
        assert_eq!(system.fact(Property::GpuCount, ""), Some(Fact::Number(8.0)));
        assert_eq!(system.fact(Property::HotFill, ""), Some(Fact::Percent(33.3)));
        assert_eq!(system.fact(Property::ColdFill, ""), None);
        assert_eq!(percent(1, 0), None);
    }
}
