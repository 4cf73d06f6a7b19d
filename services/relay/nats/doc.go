// Package nats keeps the registry of connections in a key-value bucket in the memory of NATS: [Book] writes what this relay holds, and follows what all relays hold.
//
// It promises: what this relay holds is in the bucket within moments of its connection to NATS, however often the bucket is lost, which the state service then makes anew; nothing here waits for NATS but [Book.Run]. The
// lease is one key that is refreshed, and expires by itself with whoever is killed; an orderly end removes it at once, which voids all that the relay held. While NATS is away,
// what was known goes on to count, and is doubted afterwards for the length of a lease, in which the other relays come back, too.
//
// [Teller] tells who comes and goes. Of a relay that has ended without a word, the others tell that what it held is lost, and only then remove it from the bucket. So a relay that finds an entry of
// its own removed knows that it was taken for dead, and tells once more that the connection is there: the last word in the stream is right. Between the two it was not.
package nats
