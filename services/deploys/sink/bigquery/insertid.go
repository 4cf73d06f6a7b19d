package bigquery

import (
	"crypto/sha256"
	"encoding/hex"
)

// maxInsertID is the maximum length of an insert id that BigQuery accepts, in characters.
const maxInsertID = 128

func insertID(key string) string {
	if len(key) <= maxInsertID {
		return key
	}
	digest := sha256.Sum256([]byte(key))
	return hex.EncodeToString(digest[:])
}
