//! The rows of sets, as this node knows them.

use mlgw_membership::SetRows;
use mlgw_metadata::Catalogue;

/// Returns the rows of sets.
pub(crate) fn set_rows(catalogue: &Catalogue) -> SetRows {
    SetRows::new(catalogue.sets(), catalogue.group_sets())
}
