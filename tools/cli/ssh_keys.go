package cli

import (
	"io"
	"os"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
)

func (a *app) sshKeys() *cobra.Command {
	return group("ssh-key", "Add, list and remove the SSH keys with which you enter workspaces",
		a.sshKeyAdd(), a.sshKeyList(), a.sshKeyRemove())
}

// maxPublicKeyFile is the maximum size of a file with a public key, in bytes.
const maxPublicKeyFile = 32 << 10

func (a *app) sshKeyAdd() *cobra.Command {
	var lifetime time.Duration
	var name string
	c := &cobra.Command{
		Use: "add FILE", Short: "Add a public key, such as ~/.ssh/id_ed25519.pub; - reads it from stdin",
		Args: exactly("FILE"),
		RunE: func(c *cobra.Command, args []string) error {
			text, err := publicKey(c.InOrStdin(), args[0])
			if err != nil {
				return err
			}
			api, err := a.api()
			if err != nil {
				return err
			}
			request := &statev1.AddSSHKeyRequest{Name: name, PublicKey: text}
			if lifetime > 0 {
				request.ExpiresAt = timestamppb.New(time.Now().Add(lifetime))
			}
			response, err := api.SSHKeys.AddSSHKey(c.Context(), connect.NewRequest(request))
			if err != nil {
				return err
			}
			return a.print(response.Msg, sshKeyTable(response.Msg.GetSshKey()))
		},
	}
	durationFlag(c, &lifetime, "expires-in", 0, "time until it expires, such as 30d; default: never")
	c.Flags().StringVar(&name, "name", "", "name of the key; default: its comment")
	return c
}

// publicKey reads a public key from a file, or from stdin if the path is -.
func publicKey(stdin io.Reader, path string) (string, error) {
	in := stdin
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return "", fault.Wrap(err, errcode.InvalidArgument, "read the public key: %v", err)
		}
		defer f.Close() //nolint:errcheck // it was only read
		in = f
	}
	text, err := io.ReadAll(io.LimitReader(in, maxPublicKeyFile))
	if err != nil {
		return "", fault.Wrap(err, errcode.InvalidArgument, "read the public key: %v", err)
	}
	return string(text), nil
}

func (a *app) sshKeyList() *cobra.Command {
	var user string
	c := &cobra.Command{
		Use: "list", Short: "List your SSH keys, oldest first", Args: exactly(),
		RunE: func(c *cobra.Command, _ []string) error {
			api, err := a.api()
			if err != nil {
				return err
			}
			request := &statev1.ListSSHKeysRequest{}
			if request.UserId, err = a.names(c.Context(), api).userID(user); err != nil {
				return err
			}
			response, err := api.SSHKeys.ListSSHKeys(c.Context(), connect.NewRequest(request))
			if err != nil {
				return err
			}
			return a.print(response.Msg, sshKeyTable(response.Msg.GetSshKeys()...))
		},
	}
	a.userFlag(c, &user, "list the keys of another user (administrators only)")
	return c
}

func (a *app) sshKeyRemove() *cobra.Command {
	var user string
	c := &cobra.Command{
		Use: "remove KEY", Short: "Remove an SSH key by its name or fingerprint; SSH connections with it end",
		Args: exactly("KEY"),
		RunE: func(c *cobra.Command, args []string) error {
			api, err := a.api()
			if err != nil {
				return err
			}
			request := &statev1.RemoveSSHKeyRequest{Key: args[0]}
			if request.UserId, err = a.names(c.Context(), api).userID(user); err != nil {
				return err
			}
			response, err := api.SSHKeys.RemoveSSHKey(c.Context(), connect.NewRequest(request))
			if err != nil {
				return err
			}
			if a.output != outputTable {
				return a.print(response.Msg, table{})
			}
			return a.note("removed SSH key %s %s", response.Msg.GetSshKey().GetName(), response.Msg.GetSshKey().GetFingerprint())
		},
	}
	a.userFlag(c, &user, "remove a key of another user (administrators only)")
	return c
}

func sshKeyTable(keys ...*statev1.SSHKey) table {
	t := table{header: []string{"NAME", "FINGERPRINT", "AGE", "EXPIRES"}}
	for _, k := range keys {
		expires := "never"
		if k.GetExpiresAt() != nil {
			expires = k.GetExpiresAt().AsTime().Local().Format(time.DateTime)
			if k.GetExpiresAt().AsTime().Before(time.Now()) {
				expires = "expired"
			}
		}
		t.rows = append(t.rows, []string{k.GetName(), k.GetFingerprint(), age(k.GetCreatedAt()), expires})
	}
	return t
}
