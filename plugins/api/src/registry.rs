//! Registry of models: what a study can name beside the models of the caches, the memory and the core that come with nodescope.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::containment::{Contained, Failure};
use crate::{
    Declaration, Kind, MemoryLatency, Observer, Parameter, Prefetcher, ReferenceTiming,
    Replacement, VcpuPlace,
};

/// The node for which a model is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeShape {
    /// Core and socket of each vCPU.
    pub vcpus: Vec<VcpuPlace>,
    /// Cycles of the vCPUs' clocks in a second.
    pub hertz: u64,
    /// Bytes of a line.
    pub line_bytes: u32,
}

/// The cache for which a policy or a prefetcher is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheShape {
    /// Level, counted from 1.
    pub level: u8,
    /// Number of sets.
    pub sets: u32,
    /// Number of ways of a set.
    pub ways: u32,
    /// Bytes of a line.
    pub line_bytes: u32,
}

/// Values of a model's parameters.
#[derive(Clone, Copy, Debug)]
pub struct Values<'a> {
    parameters: &'static [Parameter],
    values: &'a [u64],
}

impl Values<'_> {
    /// Returns the value of a parameter.
    ///
    /// # Panics
    /// Panics if the model declares no parameter of this name. The study then ends with the model's name.
    pub fn get(&self, name: &str) -> u64 {
        let at = self.parameters.iter().position(|known| known.name == name);
        let value = at.and_then(|at| self.values.get(at));
        *value.unwrap_or_else(|| panic!("it declares no parameter {name:?}"))
    }

    /// Returns the values in the order of the declaration.
    pub fn all(&self) -> &[u64] {
        self.values
    }
}

/// Name of a registered model in a description: `model:NAME` in files. The description can be read where the model is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ModelName(&'static str);

impl ModelName {
    /// Start of the text form.
    pub const PREFIX: &'static str = "model:";

    /// Returns the name of a model. Equal names share their text, which stays for as long as the process.
    pub fn new(name: &str) -> ModelName {
        static NAMES: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
        let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
        let known = names.get(name).copied();
        ModelName(known.unwrap_or_else(|| {
            let name: &'static str = Box::leak(name.into());
            names.insert(name);
            name
        }))
    }

    /// Reads the text form; `None` for any other text.
    pub fn parse(text: &str) -> Option<ModelName> {
        text.strip_prefix(Self::PREFIX).map(ModelName::new)
    }

    /// Returns the model's name.
    pub fn name(self) -> &'static str {
        self.0
    }

    /// Returns a sentence about a model of this name that is not there.
    pub fn unknown(self) -> String {
        format!("model {:?} is not registered in this program", self.0)
    }
}

impl fmt::Display for ModelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", Self::PREFIX, self.0)
    }
}

type Making<S, T> = Arc<dyn Fn(&S, Values<'_>) -> Result<Box<T>, String> + Send + Sync>;

#[derive(Clone)]
enum Maker {
    Observer(Making<NodeShape, dyn Observer>),
    References(Making<NodeShape, dyn ReferenceTiming>),
    Memory(Making<NodeShape, dyn MemoryLatency>),
    Replacement(Making<CacheShape, dyn Replacement>),
    Prefetcher(Making<CacheShape, dyn Prefetcher>),
    /// A model that comes with nodescope. The text says where in a study its parameters are.
    BuiltIn(&'static str),
}

/// A model that a study can name: its declaration, and how it is made. An error of the making is a sentence that follows the model's name.
#[derive(Clone)]
pub struct Model {
    declaration: Declaration,
    maker: Maker,
    /// Where the model comes from, for people.
    origin: String,
}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.declaration.name, self.origin)
    }
}

/// Defines the function that makes a model of one kind from its declaration, and the function that makes its instances.
macro_rules! kind {
    ($kind:ident, $new:ident, $instance:ident, $shape:ty, $of:ty) => {
        #[doc = concat!("Makes a model of the kind [`Kind::", stringify!($kind), "`]. `make` makes an instance.")]
        pub fn $new(
            declaration: Declaration,
            make: impl Fn(&$shape, Values<'_>) -> Result<Box<$of>, String> + Send + Sync + 'static,
        ) -> Model {
            Model {
                declaration: Declaration {
                    kind: Kind::$kind,
                    ..declaration
                },
                maker: Maker::$kind(Arc::new(make)),
                origin: String::new(),
            }
        }

        #[doc = concat!("Makes an instance of a model of the kind [`Kind::", stringify!($kind), "`]. A panic or a bad answer of the instance is kept in `failure`.")]
        pub fn $instance(
            &self,
            shape: &$shape,
            values: &[u64],
            failure: &Failure,
        ) -> Result<Box<$of>, String> {
            match &self.maker {
                Maker::$kind(make) => self.instance(failure, |values| make(shape, values), values),
                _ => Err(self.wrong_kind(Kind::$kind)),
            }
            .map(|contained| Box::new(contained) as Box<$of>)
        }
    };
}

impl Model {
    kind!(Observer, observer, make_observer, NodeShape, dyn Observer);
    kind!(
        References,
        references,
        make_references,
        NodeShape,
        dyn ReferenceTiming
    );
    kind!(Memory, memory, make_memory, NodeShape, dyn MemoryLatency);
    kind!(
        Replacement,
        replacement,
        make_replacement,
        CacheShape,
        dyn Replacement
    );
    kind!(
        Prefetcher,
        prefetcher,
        make_prefetcher,
        CacheShape,
        dyn Prefetcher
    );

    /// Makes the entry of a model that comes with nodescope. `place` says where a study describes the model.
    pub fn built_in(declaration: Declaration, place: &'static str) -> Model {
        Model {
            declaration,
            maker: Maker::BuiltIn(place),
            origin: "nodescope".to_owned(),
        }
    }

    /// Returns where a study describes the model; `None` for a registered model, whose section is `[models.NAME]`.
    pub fn place(&self) -> Option<&'static str> {
        match self.maker {
            Maker::BuiltIn(place) => Some(place),
            _ => None,
        }
    }

    /// Returns the model with this text about where it comes from.
    pub fn from(self, origin: impl Into<String>) -> Model {
        Model {
            origin: origin.into(),
            ..self
        }
    }

    /// Returns what the model declares.
    pub fn declaration(&self) -> &Declaration {
        &self.declaration
    }

    /// Returns where the model comes from, for people.
    pub fn origin(&self) -> &str {
        &self.origin
    }

    fn wrong_kind(&self, wanted: Kind) -> String {
        let Declaration { name, kind, .. } = self.declaration;
        format!(
            "model {name:?} is of kind {:?}, not {:?}",
            kind.name(),
            wanted.name()
        )
    }

    fn instance<T: ?Sized>(
        &self,
        failure: &Failure,
        make: impl FnOnce(Values<'_>) -> Result<Box<T>, String>,
        values: &[u64],
    ) -> Result<Contained<T>, String> {
        let parameters = self.declaration.parameters;
        Contained::new(&self.declaration, failure, || {
            make(Values { parameters, values })
        })
    }
}

/// The models that a study can name, by name.
#[derive(Clone, Debug, Default)]
pub struct Registry {
    models: Vec<Model>,
}

static LINKED: OnceLock<Registry> = OnceLock::new();

impl Registry {
    /// Returns the models that the program was linked with ([`Registry::link`]).
    pub fn linked() -> Registry {
        LINKED.get().cloned().unwrap_or_default()
    }

    /// Sets the models that the program was linked with, once.
    ///
    /// # Errors
    /// A sentence about a faulty declaration, or about a second call.
    pub fn link(models: impl IntoIterator<Item = Model>) -> Result<(), String> {
        let mut registry = Registry::default();
        for model in models {
            registry.add(model.from("linked"))?;
        }
        let set = LINKED.set(registry);
        set.map_err(|_| "the program links its models twice".to_owned())
    }

    /// Adds a model.
    ///
    /// # Errors
    /// A sentence with the model's name about its declaration, or about another model of its name.
    pub fn add(&mut self, model: Model) -> Result<(), String> {
        let name = model.declaration.name;
        let fault = model
            .declaration
            .fault()
            .filter(|_| model.place().is_none());
        if let Some(fault) = fault {
            return Err(format!("model {name:?} is declared wrongly: {fault}"));
        }
        if let Some(other) = self.find(name) {
            return Err(format!(
                "model {name:?} ({}) has the name of another one ({})",
                model.origin, other.origin
            ));
        }
        self.models.push(model);
        self.models.sort_by_key(|model| model.declaration.name);
        Ok(())
    }

    /// Returns the model of a name.
    pub fn find(&self, name: &str) -> Option<&Model> {
        self.models
            .iter()
            .find(|model| model.declaration.name == name)
    }

    /// Returns all models in the order of their names.
    pub fn models(&self) -> &[Model] {
        &self.models
    }
}
