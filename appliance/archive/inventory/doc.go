// Package inventory asks daemons what they hold and keeps the answers (daemon protocol 5).
//
// What control wants to know is a request: one view of resources, of one content tree, of storage, routes or active
// jobs. A request takes one durable query a page. The chunks of a page are staged by daemon, generation, query and
// snapshot; only when all from the first through the last are there does the answer count:
//
//   - RESOURCES: the rows of the page's resources are replaced, and after the last page of a full view the resources it
//     did not show are marked absent.
//   - CONTENT_TREE: chunks are staged in the form in which trees are read, so the last one only points the tree to its
//     new chunks. A tree of 200,000 files is replaced in one transaction that writes a few rows.
//   - STORAGE: the rows of the daemon's roots are replaced.
//   - ROUTES and ACTIVE_JOBS: the answer is handed to whoever asked, and kept with the request.
//
// Anything else - a gap, a changed revision, a wrong total, an error, a disconnect, a newer generation - deletes what was
// staged and leaves what was known. After a faulty answer the request begins anew once; after a change of the inventory a
// few times; after a disconnect when nobody waits for it who could ask again.
package inventory
