//! Call sites of MPI calls, and the names of their places in the source.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use nodescope_hypercall::MpiRecord;
use serde::{Serialize, Serializer};

/// The call site of a call: its return address, relative to the load address of its module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Site {
    /// The address; 0 if unknown.
    pub address: u64,
    /// Id of the module, as in [`MpiRecord::call_module`]: 0 for the main program.
    pub module: u64,
}

impl Site {
    /// Returns the call site of a record.
    pub fn of(record: &MpiRecord) -> Site {
        Site {
            address: record.call_site,
            module: record.call_module,
        }
    }
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.address, self.module) {
            (0, _) => f.write_str("unknown"),
            (address, 0) => write!(f, "program+{address:#x}"),
            (address, u64::MAX) => write!(f, "{address:#x}"),
            (address, module) => write!(f, "module {module:x}+{address:#x}"),
        }
    }
}

/// Place of a call site in the source. At least one of the fields is known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Place {
    /// Function that calls, the innermost one where functions are inlined; `None` if unknown.
    pub function: Option<String>,
    /// Source file, as the compiler wrote its name; `None` if unknown.
    pub file: Option<String>,
    /// Number of the line in the source file, from 1; `None` if unknown.
    pub line: Option<u32>,
}

impl Place {
    /// Returns the place as text, such as `ring (ring.c:42)`. Without a source line, the address tells calls of a function apart.
    fn text(&self, address: &str) -> String {
        let name = |path: &str| path.rsplit('/').next().unwrap_or(path).to_owned();
        let source = self.file.as_deref().zip(self.line);
        let source = source.map(|(file, line)| format!("{}:{line}", name(file)));
        match (&self.function, source) {
            (Some(function), Some(source)) => format!("{function} ({source})"),
            (Some(function), None) => format!("{function} ({address})"),
            (None, Some(source)) => source,
            (None, None) => address.to_owned(),
        }
    }
}

/// Names of an MPI program's call sites. A trace has the names of modules; places are looked up in the files of the program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SiteNames {
    /// Short names of the program's executables.
    pub executables: BTreeSet<String>,
    /// File names of the other modules, by their ids.
    pub modules: BTreeMap<u64, String>,
    /// Places of call sites.
    pub places: BTreeMap<Site, Place>,
}

impl SiteNames {
    /// Adds the name of a record's module, if the record has it.
    pub fn learn(&mut self, record: &MpiRecord) {
        if !record.module_name.is_empty() {
            (self.modules).insert(record.call_module, record.module_name.clone());
        }
    }

    /// Returns the file name of a call site's module; `None` if unknown, or if the program has several executables.
    pub fn file(&self, site: Site) -> Option<&str> {
        let mut executables = self.executables.iter();
        match site.module {
            0 if self.executables.len() == 1 => executables.next().map(String::as_str),
            0 => None,
            module => self.modules.get(&module).map(String::as_str),
        }
    }

    /// Returns a call site by its address, such as `program+0x14f7` or `libsolver.so+0x14f7`.
    pub fn address(&self, site: Site) -> String {
        match self.modules.get(&site.module) {
            Some(name) if site.address != 0 && site.module != 0 => {
                format!("{name}+{:#x}", site.address)
            }
            _ => site.to_string(),
        }
    }

    /// Returns a call site as text for people: its place where it is known, or else its address.
    pub fn text(&self, site: Site) -> String {
        let address = self.address(site);
        match self.place(site) {
            Some(place) => place.text(&address),
            None => address,
        }
    }

    /// Returns the place of a call site, if it is known.
    pub fn place(&self, site: Site) -> Option<&Place> {
        self.places.get(&site)
    }

    /// Returns a call with its call site.
    pub fn call(&self, call: impl Into<String>, site: Site) -> Call {
        Call {
            call: call.into(),
            site,
            address: (site.address != 0).then(|| self.address(site)),
            place: self.place(site).cloned(),
        }
    }

    /// Returns the places by the addresses of their call sites, as [`SiteNames::address`] writes them.
    pub fn by_address(&self) -> BTreeMap<String, Place> {
        let named = self.places.iter();
        named
            .map(|(&site, place)| (self.address(site), place.clone()))
            .collect()
    }
}

/// A call and its call site. The text has the place where it is known, or else the address. JSON always has the address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Call {
    /// MPI function of the call, perhaps with arguments; or another text that has no call site.
    pub call: String,
    /// The call site.
    pub site: Site,
    /// The call site by its address, as [`SiteNames::address`] writes it; `None` if unknown.
    pub address: Option<String>,
    /// Place of the call site; `None` if unknown.
    pub place: Option<Place>,
}

impl Call {
    /// Returns a text in place of a call.
    pub fn without_site(call: impl Into<String>) -> Call {
        Call {
            call: call.into(),
            ..Call::default()
        }
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.call)?;
        match (&self.place, &self.address) {
            (Some(place), Some(address)) => write!(f, " at {}", place.text(address)),
            (None, Some(address)) => write!(f, " at {address}"),
            (_, None) => Ok(()),
        }
    }
}

impl Serialize for Call {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.address {
            Some(address) => serializer.collect_str(&format_args!("{} at {address}", self.call)),
            None => serializer.serialize_str(&self.call),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_have_places_and_json_has_addresses() {
        let [known, library, other] =
            [(0x20, 0), (0x30, 7), (0x40, 8)].map(|(address, module)| Site { address, module });
        let place = Place {
            function: Some("ring".into()),
            file: Some("/home/src/ring.c".into()),
            line: Some(42),
        };
        let mut names = SiteNames::default();
        names.modules.insert(7, "libsolver.so".into());
        names.places.insert(known, place.clone());
        let call = |site| names.call("MPI_Recv", site);
        assert_eq!(call(known).to_string(), "MPI_Recv at ring (ring.c:42)");
        let json = serde_json::to_string(&call(known)).unwrap();
        assert_eq!(json, r#""MPI_Recv at program+0x20""#);
        assert_eq!(call(library).to_string(), "MPI_Recv at libsolver.so+0x30");
        assert_eq!(call(other).to_string(), "MPI_Recv at module 8+0x40");
        assert_eq!(call(Site::default()).to_string(), "MPI_Recv");
        assert_eq!(
            names.by_address(),
            [("program+0x20".to_owned(), place)].into()
        );
    }

    #[test]
    fn parts_of_a_place_may_be_unknown() {
        let text = |function: Option<&str>, file: Option<&str>, line| {
            let [function, file] = [function, file].map(|part| part.map(str::to_owned));
            let place = Place {
                function,
                file,
                line,
            };
            place.text("program+0x20")
        };
        assert_eq!(text(Some("ring"), None, None), "ring (program+0x20)");
        assert_eq!(text(None, Some("a/ring.c"), Some(42)), "ring.c:42");
        assert_eq!(text(None, None, None), "program+0x20");
    }

    #[test]
    fn the_program_has_a_file_if_it_has_one_executable() {
        let mut names = SiteNames::default();
        names.executables.insert("ocean".into());
        assert_eq!(names.file(Site::default()), Some("ocean"));
        names.executables.insert("air".into());
        assert_eq!(names.file(Site::default()), None);
    }
}
