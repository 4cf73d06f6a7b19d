package signing

import (
	"encoding/base64"
	"time"

	"lockstep.internal/libs/access"
	"lockstep.internal/libs/signingkey"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/state/directory"
)

// Schedule is the rotation of the keys that sign access tokens.
var Schedule = signingkey.Schedule{
	Interval: 24 * time.Hour,
	Lead:     10 * time.Minute,
	Lifetime: 48 * time.Hour,
	Rest:     2 * access.TokenLifetime,
}

// Entry publishes the public key, or its removal.
func Entry(k signingkey.Key, removed bool) directory.Entry {
	return directory.Entry{Kind: "key", Key: k.ID, Data: events.DirectoryKey{
		KeyID: k.ID, Algorithm: events.KeyAlgorithmEdDSA, PublicKey: base64.RawURLEncoding.EncodeToString(k.Public),
		NotBefore: k.MadeAt.UTC(), NotAfter: k.NotAfter.UTC(), Deleted: removed,
	}}
}
