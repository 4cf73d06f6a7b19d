package controller

import (
	"fmt"
	"strconv"
	"time"

	"lockstep.internal/libs/seal"
)

const (
	secretName = "secret"
	// beforeName is the secret before the last rotation.
	beforeName = "before"
)

// SealSecret encrypts the signing secret of a controller for storage.
func SealSecret(secret string, id int64, key seal.Key) ([]byte, error) {
	return sealSecrets(seal.Values{secretName: seal.NewValue(secret)}, id, key)
}

// RotateSecret encrypts a new signing secret of a webhook, with the one before.
func RotateSecret(c Controller, secret string, key seal.Key) ([]byte, error) {
	current, err := openSecrets(c, key)
	if err != nil {
		return nil, err
	}
	return sealSecrets(seal.Values{secretName: seal.NewValue(secret), beforeName: current[secretName]}, c.ID, key)
}

func sealSecrets(secrets seal.Values, id int64, key seal.Key) ([]byte, error) {
	box, err := secrets.Seal(label(id), key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("seal the secret of controller %d: %w", id, err)
	}
	return box, nil
}

// OpenSecrets decrypts the signing secrets of a webhook that are valid at a time: the current one first, and the one
// before until its time has passed.
func OpenSecrets(c Controller, key seal.Key, at time.Time) ([]seal.Value, error) {
	values, err := openSecrets(c, key)
	if err != nil {
		return nil, err
	}
	valid := []seal.Value{values[secretName]}
	if before, has := values[beforeName]; has && at.Before(c.SecretBeforeUntil) {
		valid = append(valid, before)
	}
	return valid, nil
}

func openSecrets(c Controller, key seal.Key) (seal.Values, error) {
	values, err := seal.OpenValues(c.Secret, label(c.ID), key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("open the secret of controller %d: %w", c.ID, err)
	}
	return values, nil
}

func label(id int64) string { return "admission/controllers/" + strconv.FormatInt(id, 10) }
