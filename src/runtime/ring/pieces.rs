//! The number of bytes that a ring moves at once. All other connections wait meanwhile: half a
//! megabyte takes a fifth of a millisecond in warm memory, and up to fourteen milliseconds if the
//! host of a virtual machine has to find each page anew. Pure: it is told how long pieces took.

use std::time::Duration;

/// Bytes of the largest piece: with less, 1 MiB takes a quarter more CPU (docs/decisions/0052).
pub const PIECE_SIZE_MAX: usize = 512 * 1024;
/// Bytes of the smallest piece, which the slowest memory seen clears in a millisecond.
const PIECE_SIZE_MIN: usize = 32 * 1024;
/// The time of a piece above which smaller ones follow: a fifth of what a connection may hold up
/// the others.
const PIECE_TIME_MAX: Duration = Duration::from_millis(1);
/// The time of a piece below which twice as much would take half of [`PIECE_TIME_MAX`] at most.
const PIECE_TIME_SHORT: Duration = Duration::from_micros(250);
/// Whole pieces in a row within that time, after which they grow. More than one, since room may be
/// made in one go and filled in the next, which takes less.
const SHORT_PIECES_MIN: u8 = 8;

/// The size of the next piece.
#[derive(Clone, Copy, Debug)]
pub struct PieceSize {
    size: usize,
    /// Whole pieces in a row that were short.
    short: u8,
}

impl Default for PieceSize {
    fn default() -> Self {
        Self { size: PIECE_SIZE_MAX, short: 0 }
    }
}

impl PieceSize {
    /// In bytes.
    pub const fn get(self) -> usize {
        self.size
    }

    /// A piece of `count` bytes has moved, in this time. `count` is 0 if only room was made for it.
    pub fn handle_piece(&mut self, count: usize, took: Duration) {
        if took > PIECE_TIME_SHORT {
            self.short = 0;
        } else if count >= self.size {
            self.short += 1;
        }
        if took > PIECE_TIME_MAX {
            self.size = (self.size / 2).max(PIECE_SIZE_MIN);
        } else if self.short == SHORT_PIECES_MIN {
            *self = Self { size: (self.size * 2).min(PIECE_SIZE_MAX), short: 0 };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_smaller_where_memory_is_slow_and_grow_again() {
        let mut size = PieceSize::default();
        // Nanoseconds that a KiB takes: the slowest seen, and warm memory. The sizes are those of
        // the first and the last piece.
        for (nanoseconds, pieces, from, to) in [
            (400, 10, 512, 512),
            (1_900, 10, 512, 512),
            (27_000, 3, 512, 64),
            (27_000, 100, 64, 32),
            // Larger ones would take too long again.
            (10_000, 100, 32, 32),
            (3_500, 100, 32, 128),
            (400, 15, 128, 256),
            (400, 1, 256, 512),
        ] {
            assert_eq!(size.get(), from * 1_024, "{nanoseconds}");
            for _ in 0..pieces {
                size.handle_piece(size.get(), Duration::from_nanos((size.get() / 1_024) as u64 * nanoseconds));
            }
            assert_eq!(size.get(), to * 1_024, "{nanoseconds}");
        }
    }

    #[test]
    fn room_that_is_made_in_one_go_and_filled_in_the_next_makes_pieces_no_larger() {
        let mut size = PieceSize::default();
        for _ in 0..100 {
            size.handle_piece(0, Duration::from_nanos((size.get() / 1_024) as u64 * 9_000));
            size.handle_piece(size.get(), Duration::from_micros(10));
        }
        assert_eq!(size.get(), 64 * 1_024);
        (0..100).for_each(|_| size.handle_piece(size.get() - 1, Duration::ZERO));
        assert_eq!(size.get(), 64 * 1_024, "none was whole");
    }
}
