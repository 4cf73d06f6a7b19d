package environment

import (
	"crypto/sha256"
	"encoding/hex"
	"hash"
	"strconv"
	"strings"
)

// images is how runs begin that no commit names.
const images = "images-"

func ofImages(run string) bool { return strings.HasPrefix(run, images) }

type digest struct{ hash.Hash }

func newDigest() digest { return digest{sha256.New()} }

// add a part, so that no two lists of parts are the same bytes.
func (d digest) add(part string) { _, _ = d.Write([]byte(strconv.Itoa(len(part)) + ":" + part)) }

func (d digest) sum() string { return images + hex.EncodeToString(d.Sum(nil)[:8]) }
