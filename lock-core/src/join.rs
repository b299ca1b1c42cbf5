//! Awaiting several futures of one task.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

/// Polls all futures until all have completed.
pub async fn join_all<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut pending: Vec<Pin<Box<F>>> = futures.map(Box::pin).collect();
    let mut outputs: Vec<Option<F::Output>> = pending.iter().map(|_| None).collect();
    poll_fn(|cx| {
        let mut is_ready = true;
        for (future, output) in pending.iter_mut().zip(&mut outputs) {
            if output.is_none() {
                match future.as_mut().poll(cx) {
                    Poll::Ready(ready) => *output = Some(ready),
                    Poll::Pending => is_ready = false,
                }
            }
        }
        if is_ready { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    outputs.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn all_outputs_are_in_the_order_of_their_futures() {
        let (senders, receivers): (Vec<_>, Vec<_>) =
            (0..3).map(|_| oneshot::channel::<usize>()).unzip();
        let joined = tokio::spawn(join_all(receivers.into_iter()));
        for (number, sender) in senders.into_iter().enumerate().rev() {
            tokio::task::yield_now().await;
            sender.send(number).expect("it is awaited");
        }
        let outputs = joined.await.expect("no panic");
        assert_eq!(outputs, [Ok(0), Ok(1), Ok(2)]);
        assert_eq!(join_all(std::iter::empty::<std::future::Ready<()>>()).await, []);
    }
}
