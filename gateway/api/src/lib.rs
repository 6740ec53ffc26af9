//! The requests and answers of the admin API as types, which its handlers, the command line and tests share.
//!
//! The package knows serde alone: no HTTP, no engine. Whoever has an engine's type makes an answer of it where
//! that type is at home. What always holds: docs/openapi.json describes every type, and tests of the handlers
//! hold them to it. Nothing is stored here: power failure changes nothing.

mod bindings;
mod buckets;
mod datasets;
mod decisions;
mod dirty;
mod error;
mod jobs;
mod keys;
mod migrations;
mod objects;
mod quota;
mod settings;

pub use bindings::{BindRequest, BindingInfo, RefreshRequest, Refreshed};
pub use buckets::{BucketInfo, BucketPage, NewBucketRequest};
pub use datasets::{
    DatasetInfo, DatasetList, NewDataset, PinRequest, ResidencyInfo, ScheduleInfo, ScheduleRequest,
    SourceInfo,
};
pub use decisions::{DecisionInfo, DecisionList};
pub use dirty::{DirtyInfo, Discarded};
pub use error::ErrorDocument;
pub use jobs::{JobInfo, JobList, JobRequest};
pub use keys::{CreatedKey, KeyChange, KeyInfo, KeyList, NewKey, Role};
pub use migrations::MigrateRequest;
pub use objects::{AtOrigin, ExtentInfo, InTier, ObjectInfo};
pub use quota::{QuotaInfo, QuotaRequest, UsedInfo};
pub use settings::{SettingInfo, SettingList};

/// The service that signatures of the admin API are made for.
pub const SERVICE: &str = "mlgw";
