//! Histograms of durations, with four buckets for each power of two.
//!
//! A bucket has the number of its samples and their sum, so the totals are exact, and a sample is known
//! to a quarter of its size. Recording costs two additions.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The first bucket has the samples below 2^10 ns, about a microsecond.
const FIRST_POWER: u32 = 10;
/// The last bucket has the samples from 2^42 ns on, 73 minutes.
const LAST_POWER: u32 = 42;
/// The number of buckets for each power of two.
const PARTS: u32 = 4;
/// The number of buckets.
const BUCKETS: usize = ((LAST_POWER - FIRST_POWER) * PARTS) as usize + 2;

/// A histogram.
#[derive(Debug)]
struct Histogram {
    buckets: [AtomicBucket; BUCKETS],
}

#[derive(Debug)]
struct AtomicBucket {
    count: AtomicU64,
    /// In nanoseconds.
    sum: AtomicU64,
}

impl AtomicBucket {
    const fn new() -> Self {
        Self { count: AtomicU64::new(0), sum: AtomicU64::new(0) }
    }
}

impl Histogram {
    const fn new() -> Self {
        Self { buckets: [const { AtomicBucket::new() }; BUCKETS] }
    }

    #[inline]
    fn record(&self, sample: Duration) {
        let nanos = u64::try_from(sample.as_nanos()).unwrap_or(u64::MAX);
        let bucket = &self.buckets[index_of(nanos)];
        bucket.count.fetch_add(1, Ordering::Relaxed);
        bucket.sum.fetch_add(nanos, Ordering::Relaxed);
    }

    /// Adds the samples to those of `total`.
    fn add_to(&self, total: &mut HistogramSnapshot) {
        let mut buckets = Vec::new();
        for (index, bucket) in self.buckets.iter().enumerate() {
            let count = bucket.count.load(Ordering::Relaxed);
            if count > 0 {
                let sum = Duration::from_nanos(bucket.sum.load(Ordering::Relaxed));
                buckets.push(HistogramBucket { index, count, sum });
            }
        }
        total.merge(&HistogramSnapshot { buckets });
    }

    /// Forgets all samples.
    fn reset(&self) {
        for bucket in &self.buckets {
            bucket.count.store(0, Ordering::Relaxed);
            bucket.sum.store(0, Ordering::Relaxed);
        }
    }
}

/// A histogram whose buckets are allocated for its first sample.
#[derive(Debug, Default)]
pub struct LazyHistogram(OnceLock<Box<Histogram>>);

impl LazyHistogram {
    #[inline]
    pub fn record(&self, sample: Duration) {
        self.0.get_or_init(|| Box::new(Histogram::new())).record(sample);
    }

    /// Adds the samples to those of `total`.
    pub fn add_to(&self, total: &mut HistogramSnapshot) {
        if let Some(histogram) = self.0.get() {
            histogram.add_to(total);
        }
    }

    /// Forgets all samples.
    pub fn reset(&self) {
        if let Some(histogram) = self.0.get() {
            histogram.reset();
        }
    }
}

/// The bucket of a sample of this number of nanoseconds.
fn index_of(nanos: u64) -> usize {
    let power = nanos.max(1).ilog2();
    if power < FIRST_POWER {
        return 0;
    }
    if power >= LAST_POWER {
        return BUCKETS - 1;
    }
    // The two bits below the highest one.
    #[allow(clippy::cast_possible_truncation)]
    let part = ((nanos >> (power - 2)) % u64::from(PARTS)) as usize;
    ((power - FIRST_POWER) * PARTS) as usize + part + 1
}

/// The samples of a bucket are shorter than this; `None` for the last one.
fn end_of(index: usize) -> Option<Duration> {
    if index + 1 >= BUCKETS {
        return None;
    }
    let index = u64::try_from(index).ok()?;
    let parts = u64::from(PARTS);
    let (power, part) = (u64::from(FIRST_POWER) + index / parts, index % parts);
    Some(Duration::from_nanos((parts + part) << (power - 2)))
}

/// The samples of a histogram of durations at one moment.
///
/// The number of samples and their sum are exact. The size of a single sample is known to a quarter,
/// from 1 µs to 73 minutes.
///
/// # Examples
///
/// ```
/// use lock_runtime::{LockClient, LockError};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), LockError> {
/// let client = LockClient::memory();
/// client.lock("report").template("report").run(async { /* … */ }).await?;
/// let snapshot = client.snapshot();
/// let holds = &snapshot.site("report").expect("it was used").hold;
/// assert_eq!(holds.count(), 1);
/// assert!(holds.quantile(0.99).is_some());
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HistogramSnapshot {
    /// The buckets that have samples, in their order.
    buckets: Vec<HistogramBucket>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct HistogramBucket {
    index: usize,
    count: u64,
    sum: Duration,
}

impl HistogramBucket {
    fn mean(&self) -> Duration {
        let nanos = self.sum.as_nanos() / u128::from(self.count.max(1));
        let mean = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        // The count and the sum are read one after the other, so the mean may lie outside of the bucket.
        let start = self.index.checked_sub(1).and_then(end_of).unwrap_or_default();
        let last = end_of(self.index).map(|end| end.saturating_sub(Duration::from_nanos(1)));
        last.map_or(mean, |last| mean.min(last)).max(start)
    }
}

impl HistogramSnapshot {
    /// The samples as a text: `bucket:count:nanoseconds` for each bucket, with commas in between.
    #[doc(hidden)]
    pub fn to_text(&self) -> String {
        let of_bucket = |bucket: &HistogramBucket| {
            let HistogramBucket { index, count, sum } = bucket;
            format!("{index}:{count}:{}", sum.as_nanos())
        };
        self.buckets.iter().map(of_bucket).collect::<Vec<_>>().join(",")
    }

    /// Reads a text, which may be anything. `None` if it is no such text.
    #[doc(hidden)]
    pub fn of_text(text: &str) -> Option<Self> {
        let mut buckets: Vec<HistogramBucket> = Vec::new();
        for bucket in text.split(',').filter(|bucket| !bucket.is_empty()) {
            let mut parts = bucket.splitn(3, ':').map(|part| part.parse::<u64>().ok());
            let (index, count, sum) = (parts.next()??, parts.next()??, parts.next()??);
            let is_next = |index: &usize| {
                *index < BUCKETS && buckets.last().is_none_or(|last| last.index < *index)
            };
            let index = usize::try_from(index).ok().filter(is_next)?;
            // Otherwise, totals could overflow.
            let count = Some(count).filter(|count| *count <= u64::from(u32::MAX) << 16)?;
            buckets.push(HistogramBucket { index, count, sum: Duration::from_nanos(sum) });
        }
        Some(Self { buckets })
    }

    /// The number of samples.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().fold(0, |sum, bucket| sum.saturating_add(bucket.count))
    }

    /// The sum of all samples.
    #[must_use]
    pub fn sum(&self) -> Duration {
        self.buckets.iter().map(|bucket| bucket.sum).sum()
    }

    /// The sample below which this part of all samples lies, such as 0.99 for the 99th percentile, to a
    /// quarter of its size. `None` without samples. Parts outside of 0 to 1 count as 0 or 1.
    #[must_use]
    pub fn quantile(&self, part: f64) -> Option<Duration> {
        #[allow(clippy::cast_precision_loss)]
        let rank = part.clamp(0.0, 1.0) * self.count() as f64;
        let mut seen = 0.0;
        let reached = |bucket: &&HistogramBucket| {
            #[allow(clippy::cast_precision_loss)]
            let count = bucket.count as f64;
            seen += count;
            seen >= rank
        };
        self.buckets.iter().find(reached).or(self.buckets.last()).map(HistogramBucket::mean)
    }

    /// The samples by size: the ends of the buckets in their order, with the numbers of samples that are
    /// shorter. The last bucket has no end.
    pub fn cumulative(&self) -> impl Iterator<Item = (Option<Duration>, u64)> {
        let mut seen = 0;
        self.buckets.iter().map(move |bucket| {
            seen += bucket.count;
            (end_of(bucket.index), seen)
        })
    }

    /// The samples that are not in an `earlier` snapshot of the same histogram.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let added = |bucket: &HistogramBucket| {
            let known = earlier.buckets.iter().find(|known| known.index == bucket.index);
            let (count, sum) = known.map_or((0, Duration::ZERO), |known| (known.count, known.sum));
            let count = bucket.count.saturating_sub(count);
            let bucket = HistogramBucket { count, sum: bucket.sum.saturating_sub(sum), ..*bucket };
            (count > 0).then_some(bucket)
        };
        Self { buckets: self.buckets.iter().filter_map(added).collect() }
    }

    /// The mean and the number of the samples of each bucket.
    #[doc(hidden)]
    pub fn means(&self) -> impl Iterator<Item = (Duration, u64)> {
        self.buckets.iter().map(|bucket| (bucket.mean(), bucket.count))
    }

    /// Adds the samples of another histogram, for example those of another client.
    ///
    /// # Examples
    ///
    /// ```
    /// use lock_runtime::telemetry::HistogramSnapshot;
    /// use lock_runtime::{LockClient, LockError};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let client = LockClient::memory();
    /// for template in ["report", "invoice"] {
    ///     client.lock("k").template(template).run(async { /* … */ }).await?;
    /// }
    /// let mut holds = HistogramSnapshot::default();
    /// for site in client.snapshot().sites {
    ///     holds.merge(&site.hold);
    /// }
    /// assert_eq!(holds.count(), 2);
    /// # Ok(())
    /// # }
    /// ```
    pub fn merge(&mut self, other: &Self) {
        for bucket in &other.buckets {
            match self.buckets.binary_search_by_key(&bucket.index, |known| known.index) {
                Ok(at) => {
                    let known = &mut self.buckets[at];
                    known.count = known.count.saturating_add(bucket.count);
                    known.sum = known.sum.saturating_add(bucket.sum);
                }
                Err(at) => self.buckets.insert(at, *bucket),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLES: [u64; 12] =
        [0, 1, 1023, 1024, 1279, 1280, 2047, 2048, 1_000_000, (1 << 42) - 1, 1 << 42, u64::MAX];

    #[test]
    fn a_sample_is_in_the_bucket_that_ends_after_it() {
        for nanos in SAMPLES {
            let (index, sample) = (index_of(nanos), Duration::from_nanos(nanos));
            assert!(end_of(index).is_none_or(|end| sample < end), "{nanos}");
            assert!(index == 0 || end_of(index - 1).is_some_and(|end| sample >= end), "{nanos}");
        }
        assert_eq!([0, 1023, 1024, u64::MAX].map(index_of), [0, 0, 1, BUCKETS - 1]);
        let ends: Vec<_> = (0..BUCKETS).map_while(end_of).collect();
        assert!(ends.is_sorted() && ends.len() == BUCKETS - 1);
        let widest =
            ends.windows(2).map(|pair| pair[1].div_duration_f64(pair[0])).fold(0.0, f64::max);
        assert!(widest <= 1.25, "{widest}");
    }

    fn snapshot(histogram: &Histogram) -> HistogramSnapshot {
        let mut snapshot = HistogramSnapshot::default();
        histogram.add_to(&mut snapshot);
        snapshot
    }

    #[test]
    fn counts_and_sums_are_exact() {
        let histogram = Histogram::new();
        let samples = [3, 3, 500, 70_000].map(Duration::from_micros);
        for sample in samples {
            histogram.record(sample);
        }
        let first = snapshot(&histogram);
        assert_eq!((first.count(), first.sum()), (4, samples.iter().sum()));
        let ends = first.cumulative().map(|(_, count)| count).collect::<Vec<_>>();
        assert_eq!(ends, [2, 3, 4]);
        histogram.record(samples[2]);
        let added = snapshot(&histogram).since(&first);
        assert_eq!((added.count(), added.sum()), (1, samples[2]));
        let mut both = first.clone();
        both.merge(&added);
        assert_eq!(both, snapshot(&histogram));
        histogram.reset();
        assert_eq!(snapshot(&histogram), HistogramSnapshot::default());
    }

    #[test]
    fn a_quantile_is_known_to_a_quarter() {
        let histogram = Histogram::new();
        assert_eq!(snapshot(&histogram).quantile(0.5), None);
        for millis in 1..=100 {
            histogram.record(Duration::from_millis(millis));
        }
        let snapshot = snapshot(&histogram);
        for (part, expected) in [(0.5, 50.0), (0.99, 99.0), (1.0, 100.0), (-1.0, 1.0), (7.0, 100.0)]
        {
            let found = snapshot.quantile(part).expect("samples").as_secs_f64() * 1000.0;
            assert!((found / expected - 1.0).abs() < 0.25, "{part}: {found} instead of {expected}");
        }
    }

    #[test]
    fn a_text_is_read_as_it_is_written() {
        let histogram = Histogram::new();
        for nanos in SAMPLES {
            histogram.record(Duration::from_nanos(nanos));
        }
        for snapshot in [snapshot(&histogram), HistogramSnapshot::default()] {
            assert_eq!(HistogramSnapshot::of_text(&snapshot.to_text()), Some(snapshot));
        }
        for other in [
            "x",
            "1",
            "1:2",
            "1:2:3:4",
            "-1:2:3",
            "999:1:1",
            "1:18446744073709551615:1",
            "2:1:1,1:1:1",
            "1:1:1,1:1:1",
        ] {
            assert_eq!(HistogramSnapshot::of_text(other), None, "{other}");
        }
    }
}
