package cli

import (
	"errors"
	"net/http"
	"os"

	"lockstep.internal/libs/config"
	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/tools/client"
)

func (a *app) api() (*client.API, error) {
	if a.client.Server == "" {
		return nil, fault.New(
			errcode.InvalidArgument,
			"no server is configured: start one with `lockstep up`, or set --server, LOCKSTEP_SERVER or server in %s",
			a.missingOrNot(),
		)
	}
	value, err := a.token()
	if err != nil {
		return nil, err
	}
	return client.New(http.DefaultClient, a.client.Server, value), nil
}

// missingOrNot returns the path of the client configuration, and whether it is missing.
func (a *app) missingOrNot() string {
	if _, err := os.Stat(a.clientFile); errors.Is(err, os.ErrNotExist) {
		return a.clientFile + ", which does not exist"
	}
	return a.clientFile
}

// token returns LOCKSTEP_TOKEN, or else the content of the token file.
func (a *app) token() (string, error) {
	if value := os.Getenv("LOCKSTEP_TOKEN"); value != "" {
		return value, nil
	}
	if a.client.TokenFile == "" {
		return "", fault.New(errcode.Unauthenticated,
			"no personal access token is configured: set --token-file, LOCKSTEP_TOKEN or token_file in %s", a.missingOrNot())
	}
	value, err := config.SecretFile(a.client.TokenFile).Read()
	if err != nil {
		return "", fault.Wrap(err, errcode.Unauthenticated, "read the personal access token: %v", err)
	}
	return value, nil
}
