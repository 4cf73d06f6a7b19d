// Package seal keeps secrets secret on their way to an agent, and out of logs.
//
// [Seal] encrypts to one recipient's public key and proves to them who sealed ([Open] checks it):
// X25519 boxes of nkeys ("SX…" seeds, "X…" public keys). A box can be opened by its recipient and,
// having the same shared secret, by its sender; nobody else, neither the message bus nor its
// operators, can read or change it unnoticed. A box is not tied to a place or time: an old one
// opens as well as a new one. So put into the plaintext what it belongs to, such as workspace and
// revision, and compare it after opening; [Values.Seal] does this with its label.
//
// [Digest] says whether values have changed without saying what they are: anybody may see it, so it
// is keyed, since a plain hash of a short password gives the password away to whoever tries them
// all.
//
// [Value] is a string that formatting, logging and encoding replace by a placeholder. It is a guard
// against slips, not against code that calls [Value.Reveal].
//
// Everything here is pure and may be used from any goroutine.
package seal
