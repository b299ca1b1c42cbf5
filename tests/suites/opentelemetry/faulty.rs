//! Meter providers that misbehave.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use opentelemetry::metrics::{
    AsyncInstrument, AsyncInstrumentBuilder, Callback, Histogram, HistogramBuilder,
    InstrumentProvider, Meter, MeterProvider, ObservableCounter, SyncInstrument,
};
use opentelemetry::{InstrumentationScope, KeyValue};

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProviderFault {
    /// The creation of instruments panics.
    CreationPanics,
    /// Recording a sample panics.
    RecordingPanics,
    /// Recording a sample blocks until the gate is opened.
    RecordingBlocks,
    /// Nothing, but callbacks are called by the test.
    None,
}

/// A meter provider with a fault. All clones are the same one.
#[derive(Clone)]
pub(crate) struct FaultyProvider(Arc<FaultyMeter>);

pub(crate) struct FaultyMeter {
    fault: ProviderFault,
    /// How often the fault has occurred.
    occurred: AtomicU64,
    /// The number of samples that were recorded.
    recorded: AtomicU64,
    gate: Gate,
    callbacks: Mutex<Vec<Callback<u64>>>,
}

impl FaultyProvider {
    pub(crate) fn new(fault: ProviderFault) -> Self {
        Self(Arc::new(FaultyMeter {
            fault,
            occurred: AtomicU64::new(0),
            recorded: AtomicU64::new(0),
            gate: Gate::default(),
            callbacks: Mutex::default(),
        }))
    }

    pub(crate) fn occurred(&self) -> u64 {
        self.0.occurred.load(Ordering::SeqCst)
    }

    pub(crate) fn recorded(&self) -> u64 {
        self.0.recorded.load(Ordering::SeqCst)
    }

    /// Lets all recordings continue.
    pub(crate) fn open(&self) {
        self.0.gate.open();
    }

    /// Whether the test alone refers to it.
    pub(crate) fn is_free(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }

    /// Has the counters observed.
    pub(crate) fn observe(&self, instrument: &dyn AsyncInstrument<u64>) {
        // Not under the lock, which a panic would poison.
        let callbacks = std::mem::take(&mut *self.0.callbacks.lock().expect("never poisoned"));
        let called = std::panic::AssertUnwindSafe(|| {
            for callback in &callbacks {
                callback(instrument);
            }
        });
        let called = std::panic::catch_unwind(called);
        self.0.callbacks.lock().expect("never poisoned").extend(callbacks);
        if let Err(payload) = called {
            std::panic::resume_unwind(payload);
        }
    }
}

impl MeterProvider for FaultyProvider {
    fn meter_with_scope(&self, _: InstrumentationScope) -> Meter {
        let meter: Arc<FaultyMeter> = Arc::clone(&self.0);
        Meter::new(Arc::new(WeakMeter(Arc::downgrade(&meter))))
    }
}

/// As in the SDK, instruments do not keep their provider.
struct WeakMeter(std::sync::Weak<FaultyMeter>);

impl InstrumentProvider for WeakMeter {
    fn u64_observable_counter(
        &self,
        builder: AsyncInstrumentBuilder<'_, ObservableCounter<u64>, u64>,
    ) -> ObservableCounter<u64> {
        if let Some(meter) = self.0.upgrade() {
            meter.callbacks.lock().expect("never poisoned").extend(builder.callbacks);
        }
        ObservableCounter::new()
    }

    fn f64_histogram(&self, _: HistogramBuilder<'_, Histogram<f64>>) -> Histogram<f64> {
        if let Some(meter) = self.0.upgrade()
            && meter.fault == ProviderFault::CreationPanics
        {
            meter.occurred.fetch_add(1, Ordering::SeqCst);
            panic!("as planned: no instrument");
        }
        Histogram::new(Arc::new(Self(self.0.clone())))
    }
}

impl SyncInstrument<f64> for WeakMeter {
    fn measure(&self, _: f64, _: &[KeyValue]) {
        let Some(meter) = self.0.upgrade() else { return };
        match meter.fault {
            ProviderFault::RecordingPanics => {
                meter.occurred.fetch_add(1, Ordering::SeqCst);
                panic!("as planned: no sample");
            }
            ProviderFault::RecordingBlocks => {
                meter.occurred.fetch_add(1, Ordering::SeqCst);
                meter.gate.pass();
            }
            ProviderFault::CreationPanics | ProviderFault::None => {}
        }
        meter.recorded.fetch_add(1, Ordering::SeqCst);
    }
}

/// Lets nobody pass until it is opened.
#[derive(Default)]
pub(crate) struct Gate {
    is_open: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    pub(crate) fn open(&self) {
        *self.is_open.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.opened.notify_all();
    }

    pub(crate) fn pass(&self) {
        let is_open = self.is_open.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.opened.wait_while(is_open, |is_open| !*is_open));
    }
}
