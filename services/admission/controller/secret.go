package controller

import (
	"fmt"
	"strconv"

	"lockstep.internal/libs/seal"
)

const secretName = "secret"

// SealSecret encrypts the signing secret of a controller for storage.
func SealSecret(secret string, id int64, key seal.Key) ([]byte, error) {
	box, err := seal.Values{secretName: seal.NewValue(secret)}.Seal(label(id), key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("seal the secret of controller %d: %w", id, err)
	}
	return box, nil
}

// OpenSecret decrypts the signing secret of a webhook.
func OpenSecret(c Controller, key seal.Key) (seal.Value, error) {
	values, err := seal.OpenValues(c.Secret, label(c.ID), key.Public(), key)
	if err != nil {
		return seal.Value{}, fmt.Errorf("open the secret of controller %d: %w", c.ID, err)
	}
	return values[secretName], nil
}

func label(id int64) string { return "admission/controllers/" + strconv.FormatInt(id, 10) }
