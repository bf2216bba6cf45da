//! Removal of code from the cache, when a page is restored.

use crate::code_cache::CodeCache;
use crate::code_cache::heads::LoopHead;
use crate::code_cache::sites::RewriteletSite;
use crate::error::Result;
use crate::page_table::moved::PageMap;
use crate::tracer::Tracer;

impl CodeCache {
    /// Moves every thread out of the cache and removes the code that redirects to `page`. All
    /// threads are stopped.
    ///
    /// # Errors
    /// As [`Self::leave_all`], and if the process is gone.
    pub(crate) fn remove_page(&mut self, tracer: &mut Tracer, pages: &PageMap, page: u64) -> Result<()> {
        // The heads are restored first: a repairer killed after that leaves no jump to removed
        // code.
        for head in self.heads.of_page(page) {
            let Some(found) = self.heads.by_address.remove(&head) else { continue };
            if found.is_patched(tracer.memory()) {
                tracer.memory().write(head, &found.patch.original)?;
            }
            // A thread may be behind one of its traps now, before its copy is freed.
            self.heads.add_former_traps(&found);
            self.heads.retired.push(found);
        }
        self.leave_all(tracer)?;
        for found in std::mem::take(&mut self.heads.retired) {
            self.free_head(&found);
        }
        self.clear_heads(tracer)?;
        let Some(moved) = pages.get(page) else { return Ok(()) };
        for site in self.sites.values_mut() {
            site.rewritelets.retain(|(delta, trampoline)| {
                let is_gone = moved.memory.contains(&page.wrapping_add_signed(*delta));
                if is_gone {
                    self.arena.free(trampoline.at);
                }
                !is_gone
            });
        }
        self.sites.retain(|_, site| !site.rewritelets.is_empty());
        Ok(())
    }

    /// Frees the code of a head. No thread is in the cache.
    fn free_head(&mut self, found: &LoopHead) {
        self.heads.add_former_traps(found);
        // Rewritelets that continue in its copy.
        let precedes_copy = |_: &u64, site: &mut RewriteletSite| found.copy.has(site.next_ip());
        for (_, site) in self.sites.extract_if(.., precedes_copy) {
            site.rewritelets.iter().for_each(|(_, trampoline)| self.arena.free(trampoline.at));
        }
        self.arena.free(found.copy.at);
        self.arena.free(found.station);
        found.clones.iter().for_each(|installed| self.arena.free(installed.clone.at));
    }

    /// Whether a thread may be behind one of our traps. All threads are stopped.
    pub(crate) fn has_thread_behind_trap(&self, tracer: &mut Tracer) -> bool {
        tracer.threads().into_iter().any(|thread| {
            let registers = tracer.stopped(thread).and_then(|(traced, _)| traced.tracee.registers().ok());
            registers.is_some_and(|registers| self.heads.is_behind_trap(registers.rip))
        })
    }
}
