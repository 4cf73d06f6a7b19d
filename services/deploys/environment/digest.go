package environment

import (
	"crypto/sha256"
	"encoding/hex"
	"hash"
	"strconv"
	"strings"
)

// imagesPrefix starts the name of a run without a commit.
const imagesPrefix = "images-"

func isDigest(run string) bool { return strings.HasPrefix(run, imagesPrefix) }

type digest struct{ hash.Hash }

func newDigest() digest { return digest{sha256.New()} }

// add writes a part with its length, so that different lists of parts have different digests.
func (d digest) add(part string) { _, _ = d.Write([]byte(strconv.Itoa(len(part)) + ":" + part)) }

func (d digest) sum() string { return imagesPrefix + hex.EncodeToString(d.Sum(nil)[:8]) }
