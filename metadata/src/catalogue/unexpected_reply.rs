//! A reply that does not fit its command. Each command has one kind of reply, so this is an error of this
//! program. Nothing is stored here.

use mlgw_formats::command::Reply;

/// Panics because a command was answered with a reply that it never has.
pub(super) fn unreachable_reply(reply: &Reply) -> ! {
    panic!("unexpected reply to a command: {reply:?}")
}
