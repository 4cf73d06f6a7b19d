package sshserver

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/crypto/ssh"
)

// hostKeyFile is the name of the file with the host key.
const hostKeyFile = "ssh_host_ed25519_key"

// HostKey returns the host key in a folder. It creates the folder and the key where they are missing.
func HostKey(folder string) (ssh.Signer, error) {
	path := filepath.Join(folder, hostKeyFile)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		data, err = createHostKey(folder, path)
	}
	if err != nil {
		return nil, fmt.Errorf("host key: %w", err)
	}
	signer, err := ssh.ParsePrivateKey(data)
	if err != nil {
		return nil, fmt.Errorf("host key %s: %w", path, err)
	}
	return signer, nil
}

// createHostKey writes a new key beside its final path first: an agent that is killed leaves no half of a key.
func createHostKey(folder, path string) ([]byte, error) {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, err //nolint:wrapcheck // the caller says what for
	}
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err //nolint:wrapcheck // the caller says what for
	}
	block, err := ssh.MarshalPrivateKey(private, "")
	if err != nil {
		return nil, err //nolint:wrapcheck // the caller says what for
	}
	data := pem.EncodeToMemory(block)
	file, err := os.CreateTemp(folder, hostKeyFile+"-*") // only its owner can read it
	if err != nil {
		return nil, err //nolint:wrapcheck // the caller says what for
	}
	_, err = file.Write(data)
	err = errors.Join(err, file.Sync(), file.Close())
	if err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		return nil, errors.Join(err, os.Remove(file.Name()))
	}
	return data, nil
}
