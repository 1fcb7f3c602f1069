//! How users share places of which there is a fixed number: so that whatever one user takes, others
//! find some.

/// What one user may have of what all users but root share: others find some, whatever one does.
pub fn share_of(most: usize) -> usize {
    most / 4 * 3
}

/// Whether a user who has `own` of `most` places may have one more, where all users but root have
/// `others`: each may have a quarter, and all together half.
pub fn may_take_place(uid: u32, own: usize, others: usize, most: usize) -> bool {
    uid == 0 || own < most.div_ceil(4) && others < most.div_ceil(2)
}

/// Whether one more place of `most` may go to a user, where `holders` have those that are taken.
/// Cost: by these.
pub fn has_place(uid: u32, holders: impl ExactSizeIterator<Item = u32>, most: usize) -> bool {
    let taken = holders.len();
    if taken < most / 4 {
        return true;
    }
    let (own, root) = holders.fold((0, 0), |(own, root), holder| {
        (own + usize::from(holder == uid), root + usize::from(holder == 0))
    });
    taken < most && may_take_place(uid, own, taken - root, most)
}
