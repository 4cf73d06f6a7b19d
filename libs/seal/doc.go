// Package seal encrypts secrets for an agent and keeps them out of logs.
//
// [Seal] encrypts for one recipient's public key and authenticates the sender ([Open] checks it),
// with X25519 boxes of nkeys ("SX…" seeds, "X…" public keys). Only the recipient and the sender can
// open a box; the message bus and its operators can neither read nor change it. A box is not bound
// to a place or time: an old box opens as well. So the plaintext must name what it belongs to, such
// as a workspace and the digest of its values; [Values.Seal] does this with its label.
//
// [Digest] detects changed values without revealing them. It is keyed, because a plain hash of a
// short password can be guessed.
//
// [Value] is a string that formatting, logging and encoding replace by a placeholder. It guards
// against mistakes, not against code that calls [Value.Reveal].
//
// All functions are pure and safe for concurrent use.
package seal
