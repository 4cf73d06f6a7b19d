package bigquery

import (
	"crypto/sha256"
	"encoding/hex"
)

// longestInsertID is the longest insert id that BigQuery accepts, in characters.
const longestInsertID = 128

func insertID(key string) string {
	if len(key) <= longestInsertID {
		return key
	}
	digest := sha256.Sum256([]byte(key))
	return hex.EncodeToString(digest[:])
}
