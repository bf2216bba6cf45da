//! Makes the database, in one transaction.

use anyhow::{Result, ensure};
use fieldstone_peers::oo7::{FAN_OUT, LEVELS};
use fieldstone_store::{Ptr, Store, Transaction};

use super::contents::{Contents, NewPart, document_text, id_of, kind_of, manual_text};
use super::schema::{
    ATOMIC_PARTS, Assembly, AtomicPart, BASE_ASSEMBLIES, BUILD_DATES, COMPOSITE_PARTS, CompositePart, Connection,
    DOCUMENTS, Document, MANUALS, MODULE, MODULES, Manual, Module, TEXTS, TITLES, composite_root, date_key, title,
    title_field,
};
use super::sets;

/// The id of the module.
pub(super) const MODULE_ID: u32 = 1;

/// Makes the database in an empty store.
///
/// # Errors
/// Those of the store.
pub(super) fn build(store: &Store, contents: &Contents) -> Result<()> {
    let mut tx = store.begin()?;
    let composites = contents.composite_parts().map(|part| add_composite_part(&mut tx, &part));
    let composites = composites.collect::<Result<Vec<_>>>()?;
    let module = add_module(&mut tx, contents)?;
    let mut builder = AssemblyBuilder { tx: &mut tx, contents, composites, module, bases: 0, complexes: 0 };
    let design_root = builder.add(LEVELS, Ptr::NULL)?;
    ensure!(builder.bases == contents.bases(), "the design has another number of base assemblies");
    tx.edit(module)?.design_root = design_root;
    tx.commit()?;
    Ok(())
}

/// Adds a module with its manual, without assemblies.
fn add_module(tx: &mut Transaction, contents: &Contents) -> Result<Ptr<Module>> {
    let text = manual_text(MODULE_ID, contents.size.manual_bytes);
    let module = tx.alloc(Module { id: MODULE_ID, kind: kind_of(MODULE_ID), build_date: 1000, ..Module::ZERO })?;
    let title = title_field(&format!("Manual for module #{MODULE_ID:08}"));
    let manual = tx.alloc(Manual { id: MODULE_ID, title, length: u32::try_from(text.len())?, module })?;
    tx.table(MANUALS)?.insert(&MODULE_ID, &text)?;
    tx.edit(module)?.manual = manual;
    let place = tx.long(module)?;
    tx.table(MODULES)?.insert(&MODULE_ID, &place)?;
    tx.set_root(MODULE, module)?;
    Ok(module)
}

/// Adds a composite part with its document and its atomic parts, their indexes, and its root.
///
/// # Errors
/// Those of the store.
pub(super) fn add_composite_part(tx: &mut Transaction, part: &NewPart<'_>) -> Result<Ptr<CompositePart>> {
    let (id, build_date) = (part.id, part.build_date);
    let composite = tx.alloc(CompositePart { id, kind: kind_of(id), build_date, ..CompositePart::ZERO })?;
    let document = add_document(tx, part, composite)?;
    let parts = add_atomic_parts(tx, part, composite)?;
    connect(tx, part, &parts)?;
    let mut edit = tx.edit(composite)?;
    (edit.document, edit.root_part, edit.first_part) = (document, parts[0], parts[0]);
    drop(edit);
    let place = tx.long(composite)?;
    tx.table(COMPOSITE_PARTS)?.insert(&id, &place)?;
    tx.set_root(&composite_root(id), composite)?;
    Ok(composite)
}

fn add_document(tx: &mut Transaction, part: &NewPart<'_>, composite: Ptr<CompositePart>) -> Result<Ptr<Document>> {
    let (id, title) = (part.id, title(part.id));
    let document = tx.alloc(Document { id, title: title_field(&title), part: composite })?;
    let place = tx.long(document)?;
    tx.table(DOCUMENTS)?.insert(&id, &place)?;
    tx.table(TITLES)?.insert(&title, &place)?;
    tx.table(TEXTS)?.insert(&id, &document_text(id, part.document_bytes))?;
    Ok(document)
}

/// Adds the atomic parts without their connections.
fn add_atomic_parts(
    tx: &mut Transaction,
    part: &NewPart<'_>,
    composite: Ptr<CompositePart>,
) -> Result<Vec<Ptr<AtomicPart>>> {
    let mut parts = Vec::new();
    for (id, fields) in (part.first_id..).zip(part.fields) {
        let atomic = tx.alloc(AtomicPart {
            id,
            kind: fields.kind,
            build_date: fields.build_date,
            x: fields.x,
            y: fields.y,
            document_id: part.id,
            part_of: composite,
            ..AtomicPart::ZERO
        })?;
        let place = tx.long(atomic)?;
        tx.table(ATOMIC_PARTS)?.insert(&id, &place)?;
        tx.table(BUILD_DATES)?.insert(&date_key(fields.build_date, id), &place)?;
        parts.push(atomic);
    }
    Ok(parts)
}

/// Adds the connections between the atomic parts of a composite part, and makes a list of the parts.
fn connect(tx: &mut Transaction, part: &NewPart<'_>, parts: &[Ptr<AtomicPart>]) -> Result<()> {
    let mut outgoing = Vec::new();
    let mut incoming = vec![Vec::new(); parts.len()];
    for (from, targets) in part.connections.iter().enumerate() {
        let mut to = [Ptr::NULL; _];
        for (place, &target) in targets.iter().enumerate() {
            let length = part.first_id + id_of(from + place);
            let connection = Connection { kind: kind_of(length), length, from: parts[from], to: parts[target] };
            to[place] = tx.alloc(connection)?;
            incoming[target].push(to[place]);
        }
        outgoing.push(to);
    }
    for (index, (to, from)) in outgoing.into_iter().zip(incoming).enumerate() {
        let from = sets::set_of(tx, &from)?;
        let next = parts.get(index + 1).copied().unwrap_or(Ptr::NULL);
        let mut atomic = tx.edit(parts[index])?;
        (atomic.to, atomic.from, atomic.next) = (to, from, next);
    }
    Ok(())
}

/// Adds the assemblies, depth first.
struct AssemblyBuilder<'a> {
    tx: &'a mut Transaction,
    contents: &'a Contents,
    composites: Vec<Ptr<CompositePart>>,
    module: Ptr<Module>,
    /// Assemblies that were added.
    bases: usize,
    complexes: usize,
}

impl AssemblyBuilder<'_> {
    /// Adds an assembly with all that is below it.
    fn add(&mut self, level: usize, super_assembly: Ptr<Assembly>) -> Result<Ptr<Assembly>> {
        if level == 1 {
            return self.add_base(super_assembly);
        }
        let id = id_of(self.complexes);
        self.complexes += 1;
        let assembly = self.tx.alloc(Assembly {
            id,
            kind: kind_of(id),
            build_date: 1000 + id,
            level: u32::try_from(level)?,
            super_assembly,
            module: self.module,
            ..Assembly::ZERO
        })?;
        for place in 0..FAN_OUT {
            let below = self.add(level - 1, assembly)?;
            self.tx.edit(assembly)?.assemblies[place] = below;
        }
        Ok(assembly)
    }

    fn add_base(&mut self, super_assembly: Ptr<Assembly>) -> Result<Ptr<Assembly>> {
        let (index, id) = (self.bases, id_of(self.bases));
        self.bases += 1;
        let private = self.contents.design.components[index].map(|part| self.composites[part]);
        let base = self.tx.alloc(Assembly {
            id,
            kind: kind_of(id),
            build_date: self.contents.base_dates[index],
            level: 1,
            super_assembly,
            module: self.module,
            private,
            ..Assembly::ZERO
        })?;
        for composite in private {
            let users = self.tx.get(composite)?.used_in_private;
            let users = sets::add(self.tx, users, base)?;
            self.tx.edit(composite)?.used_in_private = users;
        }
        for part in self.contents.shared[index] {
            share(self.tx, base, self.composites[part])?;
        }
        let place = self.tx.long(base)?;
        self.tx.table(BASE_ASSEMBLIES)?.insert(&id, &place)?;
        Ok(base)
    }
}

/// Adds a composite part to the shared ones of a base assembly.
///
/// # Errors
/// Those of the store.
pub(super) fn share(tx: &mut Transaction, base: Ptr<Assembly>, composite: Ptr<CompositePart>) -> Result<()> {
    let parts = tx.get(base)?.shared;
    let parts = sets::add(tx, parts, composite)?;
    tx.edit(base)?.shared = parts;
    let users = tx.get(composite)?.used_in_shared;
    let users = sets::add(tx, users, base)?;
    tx.edit(composite)?.used_in_shared = users;
    Ok(())
}
