// Package history judges what a Lockstep system has told, and what came of it.
//
// Every check is a pure function over records: messages of streams, answers of the API, rows of the
// database, objects of the cluster. It returns a sentence for each thing that is wrong, in the
// order in which the records tell of it, and nothing when all is sound. A check holds whatever was
// killed, restarted or cut off meanwhile, unless it says otherwise: that is the point of it.
//
// The checks know the wire and nothing of how services work. Each has a test that shows how it
// fails.
package history
