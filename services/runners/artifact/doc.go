// Package artifact has the rules for artifacts of CI jobs: types, formats, file names, sizes, expiry, and what makes an
// uploaded file invalid.
//
// # Upload
//
// A broken or half-written artifact is never visible. The row of the artifact in the database makes it visible, and the
// row is written last:
//
//  1. [Receive] stores the content under a new key ([Key]), which no row names. The object store keeps all of it or
//     nothing.
//  2. [Receive] reads the stored object and checks it ([Check]). What the store has is checked, not what was sent. An
//     object that is not valid is deleted, and the upload is refused.
//  3. The caller writes the row with key, size and hash in the transaction that checks the state of the job.
//
// A crash before step 3, or a transaction that fails, leaves an object without a row. Nobody finds its key. [Collect]
// deletes such objects after a day, which is longer than an upload may take. An artifact that expires loses its row
// first and its object then.
//
// # What is invalid
//
// An empty file, in every format. A zip archive: no central directory, too many entries, an entry whose name leads out
// of the folder where it is extracted, an entry without its local header, or a wrong checksum. A gzip file: a wrong
// header, or a wrong checksum. Checksums need decompression, so they are checked in small files only and up to a bound:
// a zip bomb costs a bounded time. It is not refused, because the service never extracts what it stores.
package artifact
