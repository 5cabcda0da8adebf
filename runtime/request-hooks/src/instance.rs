//! A plugin's object that is made again after a panic has made it unusable: the request during the panic fails, the
//! next one does not.

use std::sync::{Arc, Mutex, PoisonError};

use halyard_platform_api::{Result, Status};

/// An object and how to make another.
pub struct Instance<T: ?Sized> {
    name: String,
    make: Box<dyn Fn() -> Result<Arc<T>> + Send + Sync>,
    current: Mutex<Arc<T>>,
}

impl<T: ?Sized> Instance<T> {
    /// Makes the first object. Blocks for as long as the plugin does.
    ///
    /// # Errors
    /// The plugin's.
    pub fn new(name: String, make: impl Fn() -> Result<Arc<T>> + Send + Sync + 'static) -> Result<Instance<T>> {
        let current = Mutex::new(make()?);
        Ok(Instance {
            name,
            make: Box::new(make),
            current,
        })
    }

    /// Name of its plugin.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Uses the object; where an earlier panic has poisoned it, another one. Blocks.
    ///
    /// # Errors
    /// Those of `function`, and of making another object.
    pub fn with<R>(&self, function: impl Fn(&T) -> Result<R>) -> Result<R> {
        let used = Arc::clone(&self.lock());
        match function(&used) {
            Err(error) if error.status == Status::Poisoned => {
                let fresh = self.replace(&used)?;
                function(&fresh)
            }
            result => result,
        }
    }

    /// The object after `poisoned`; another thread may have made it already.
    fn replace(&self, poisoned: &Arc<T>) -> Result<Arc<T>> {
        let mut current = self.lock();
        if Arc::ptr_eq(&current, poisoned) {
            *current = (self.make)()?;
            tracing::warn!(plugin = self.name, "made anew after a panic");
        }
        Ok(Arc::clone(&current))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Arc<T>> {
        // The object in it is replaced whole, so a panic elsewhere leaves nothing half done.
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
