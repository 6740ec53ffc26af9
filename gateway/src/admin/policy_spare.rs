//! The checkpoints that a policy would let go: what its `retain` would take down or delete, told before it is let to.
//!
//! By what the policy engine knows of checkpoints of our own buckets, which every look at all objects puts right. Nothing is changed.

use super::Admin;
use crate::policies::acting::groups::{InCheckpoint, Retained, Spare, is_of_person};
use crate::policies::facts::ObjectFacts;
use mlgw_common::ObjectKey;
use mlgw_metadata::ReadError;
use mlgw_metadata::schema::{Bucket, BucketState};
use mlgw_policies::at_rest::claims_of;
use mlgw_policies::checkpoints::{Generation, SeriesId, Standing};
use mlgw_policies::language::{ActionKind, Program, Wish, resolve};

/// Files of a checkpoint that rules are asked about.
const FILES_MAX: usize = 64;

/// A checkpoint, and some of its keys.
struct Known {
    prefix: String,
    keys: Vec<ObjectKey>,
}

impl Admin {
    /// What `program` would let go. Blocks.
    ///
    /// # Errors
    /// When the catalogue cannot be read.
    pub(super) fn spare(&self, program: &Program) -> Result<Vec<Spare>, ReadError> {
        let mut retained = Retained::default();
        if !program.acts(ActionKind::Retain) {
            return Ok(Vec::new());
        }
        let buckets = self.catalogue.buckets(None, None, usize::MAX);
        let ours = buckets.iter().filter(|one| one.binding.is_none() && one.state() == BucketState::Active);
        for bucket in ours {
            for series in self.series_of(bucket.id) {
                for known in self.known_of(series) {
                    self.hear(program, bucket, &known, &mut retained)?;
                }
            }
        }
        Ok(self.keeper.ask(|decider, _| retained.spare(&decider.checkpoints)))
    }

    fn series_of(&self, bucket: u64) -> Vec<SeriesId> {
        self.keeper.ask(|decider, _| {
            let series = decider.checkpoints.series().filter(|one| one.bucket == bucket);
            series.map(|one| one.id).collect()
        })
    }

    fn known_of(&self, series: SeriesId) -> Vec<Known> {
        self.keeper.ask(|decider, _| {
            let known = |one: &Generation<'_>| {
                let members = decider.checkpoints.members(one.id).into_iter().flatten().take(FILES_MAX);
                let keys =
                    members.filter_map(|(rest, _)| ObjectKey::new(&format!("{}{rest}", one.prefix)).ok());
                Known { prefix: one.prefix.to_owned(), keys: keys.collect() }
            };
            decider.checkpoints.generations(series).iter().map(known).collect()
        })
    }

    /// What a program says of the files of one.
    fn hear(
        &self,
        program: &Program,
        bucket: &Bucket,
        known: &Known,
        retained: &mut Retained,
    ) -> Result<(), ReadError> {
        let (system, now) = (self.policies.system(), self.clock.now());
        for key in &known.keys {
            let found = self.catalogue.object(bucket.bucket_id(), key)?;
            let Some(object) = found.filter(|object| !object.delete_marker) else { continue };
            let at_rest = self.known(bucket, key, &object)?;
            let rest = &ObjectFacts::new(program, &at_rest, &system, now);
            let standing = self.standing(bucket.id, key.as_str());
            let resolved = resolve(program.due(&InCheckpoint { standing, rest }));
            for (target, claim) in claims_of(program, resolved.done.iter()) {
                let by_person = is_of_person(program, claim.by.rank);
                let entry = |name: &str| {
                    let entry = at_rest.metadata.iter().find(|(of, _)| of == name);
                    entry.map(|(_, value)| value.as_str())
                };
                self.keeper.ask(|decider, _| {
                    let one = decider.checkpoints.group_of(bucket.id, key.as_str());
                    let Some(one) = one.filter(|one| one.prefix == known.prefix) else { return };
                    match &claim.wish {
                        Wish::Pin { .. } => retained.hear_pin(&one, claim.by.rank),
                        Wish::Retain(retain) => {
                            retained.hear(&one, target, (&claim.by, retain, by_person), entry)
                        }
                        _ => {}
                    }
                });
            }
        }
        Ok(())
    }

    /// What checkpoints tell of a key.
    pub(super) fn standing(&self, bucket: u64, key: &str) -> Standing {
        self.keeper.ask(|decider, _| decider.checkpoints.standing(bucket, key))
    }
}
