package cli

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/tools/client"
)

const (
	loginTimeout = 5 * time.Minute
	// secretBytes is the size of random values of a login.
	secretBytes = 32
	// nameBytes make the name of a login unique among those of a person.
	nameBytes     = 4
	headerTimeout = 10 * time.Second
	// loginPage is what the browser shows at the end.
	loginPage = "You are logged in. Close this page and go back to the terminal.\n"
)

func (a *app) login() *cobra.Command {
	var noBrowser bool
	c := &cobra.Command{
		Use:   "login [GATEWAY]",
		Short: "Log in with the browser and store a personal access token",
		Args:  atMost("GATEWAY"),
		Long: `Open the sign-in page of the gateway in the browser. When you have allowed it there, store a new personal
access token in the folder of the client configuration, in a file that only you can read, and use it from now on.

The gateway is a URL such as https://sign-in.ws.example.com. Without it, the API is asked. The flag --server is stored,
too. The browser must run on this machine.

The token permits what you may do (scope admin), but only for workspaces, projects and groups in which you have a role:
for an administrator of the cell it has the scope write. Administer the cell with a token from
` + "`lockstep token create --scope admin`" + `.`,
		Example: `  lockstep login --server https://lockstep.example.com
  lockstep login https://sign-in.ws.example.com --server https://lockstep.example.com`,
		RunE: func(c *cobra.Command, args []string) error {
			gateway, err := a.loginGateway(c.Context(), args)
			if err != nil {
				return err
			}
			defer gateway.Close()
			ctx, cancel := context.WithTimeoutCause(c.Context(), loginTimeout, fault.New(errcode.DeadlineExceeded,
				"nobody has allowed the login in the browser within %s: run `lockstep login` again", loginTimeout))
			defer cancel()
			name, err := loginName()
			if err != nil {
				return err
			}
			token, expires, err := a.browserLogin(ctx, gateway, name, !noBrowser)
			if err != nil {
				return err
			}
			if err := a.storeLogin(token, name); err != nil {
				return err
			}
			return a.note("logged in until %s", expires.Local().Format(time.DateTime))
		},
	}
	c.Flags().BoolVar(&noBrowser, "no-browser", false, "only print the address of the page")
	return c
}

func (a *app) loginGateway(ctx context.Context, args []string) (*client.Gateway, error) {
	if len(args) == 1 {
		return client.NewGateway(args[0], a.client.GatewayCAFile)
	}
	if a.client.Server == "" {
		return nil, fault.New(errcode.InvalidArgument, "log in where? Run `lockstep login --server URL` with the URL of the "+
			"API, such as https://lockstep.example.com, or `lockstep login GATEWAY`")
	}
	return a.gateway(ctx, client.New(http.DefaultClient, a.client.Server, "")) // it needs no token
}

// loginName names this machine, for the page and the list of tokens.
func loginName() (string, error) {
	host, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("name of this machine: %w", err)
	}
	host = strings.Map(func(c rune) rune {
		if strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_", c) {
			return c
		}
		return '-'
	}, host)
	suffix := make([]byte, nameBytes)
	_, _ = rand.Read(suffix) // it never fails
	return fmt.Sprintf("%.40s-%x", host, suffix), nil
}

func loginSecret() string {
	secret := make([]byte, secretBytes)
	_, _ = rand.Read(secret) // it never fails
	return base64.RawURLEncoding.EncodeToString(secret)
}

// browserLogin shows the sign-in page and exchanges the code that it returns.
func (a *app) browserLogin(
	ctx context.Context, gateway *client.Gateway, name string, open bool,
) (token string, expires time.Time, err error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", time.Time{}, fault.Wrap(err, errcode.Internal, "listen for the browser: %v", err)
	}
	state, verifier := loginSecret(), loginSecret()
	codes := make(chan string, 1)
	server := &http.Server{Handler: loginCallback(state, codes), ReadHeaderTimeout: headerTimeout}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	challenge := sha256.Sum256([]byte(verifier))
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	address := gateway.URL("/cli", url.Values{
		"port": {port}, "state": {state}, "name": {name},
		"challenge": {base64.RawURLEncoding.EncodeToString(challenge[:])},
	})
	err = a.note("allow the login in the browser, as %s:\n%s", name, address)
	if err == nil && open {
		if err := openBrowser(ctx, address); err != nil {
			_ = a.note("open the address in a browser of this machine: %v", public(err)) // it is printed above
		}
	}
	var code string
	if err == nil {
		select {
		case code = <-codes:
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
	}
	// The answer to the browser is still being written: Shutdown waits for it.
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), headerTimeout)
	defer cancel()
	err = errors.Join(err, server.Shutdown(stopping))
	if serveErr := <-served; !errors.Is(serveErr, http.ErrServerClosed) {
		err = errors.Join(err, serveErr)
	}
	if err != nil {
		return "", time.Time{}, err
	}
	return gateway.Token(ctx, code, verifier)
}

// loginCallback takes the code of a request with the right state, once.
func loginCallback(state string, codes chan<- string) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /callback", func(w http.ResponseWriter, r *http.Request) {
		query := r.URL.Query()
		code := query.Get("code")
		if subtle.ConstantTimeCompare([]byte(query.Get("state")), []byte(state)) != 1 || code == "" {
			http.Error(w, "This is not an answer to lockstep login.", http.StatusBadRequest)
			return
		}
		select {
		case codes <- code:
		default:
			http.Error(w, "The login is over.", http.StatusConflict)
			return
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("Referrer-Policy", "no-referrer")
		_, _ = w.Write([]byte(loginPage)) // the browser may be gone
	})
	return mux
}

func (a *app) loginTokenFile() string {
	return filepath.Join(filepath.Dir(a.clientFile), "login-token")
}

// storeLogin stores the token, and makes the client configuration use it.
func (a *app) storeLogin(token, name string) error {
	file, err := filepath.Abs(a.loginTokenFile())
	if err != nil {
		return fmt.Errorf("find the client configuration: %w", err)
	}
	stored, err := client.Read(a.clientFile)
	if err != nil {
		return err
	}
	if err := replaceFile(file, token+"\n", 0o600); err != nil {
		return err
	}
	stored.TokenFile, stored.LoginName = file, name
	if a.flags.Server != "" {
		stored.Server = a.flags.Server
	}
	if a.flags.GatewayCAFile != "" {
		if stored.GatewayCAFile, err = filepath.Abs(a.flags.GatewayCAFile); err != nil {
			return fmt.Errorf("find the CA certificates: %w", err)
		}
	}
	return stored.Write(a.clientFile)
}

func (a *app) logout() *cobra.Command {
	return &cobra.Command{
		Use:   "logout",
		Short: "Revoke the token of lockstep login and remove it from this machine",
		Args:  exactly(),
		RunE: func(c *cobra.Command, _ []string) error {
			stored, err := client.Read(a.clientFile)
			if err != nil {
				return err
			}
			if stored.LoginName == "" {
				return fault.New(errcode.FailedPrecondition, "%s has no login of `lockstep login`", a.clientFile)
			}
			// The token of the login, also if LOCKSTEP_TOKEN has another one.
			token, err := os.ReadFile(a.loginTokenFile())
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fault.Wrap(err, errcode.InvalidArgument, "read the token of the login: %v", err)
			}
			if len(token) > 0 {
				api := client.New(http.DefaultClient, a.client.Server, strings.TrimSpace(string(token)))
				err = revokeLogin(c.Context(), api, stored.LoginName)
			}
			switch {
			case fault.Is(err, errcode.Unauthenticated): // revoked or expired
			case err != nil:
				return err
			}
			if err := os.Remove(a.loginTokenFile()); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fault.Wrap(err, errcode.Internal, "remove the token: %v", err)
			}
			stored.TokenFile, stored.LoginName = "", ""
			if err := stored.Write(a.clientFile); err != nil {
				return err
			}
			return a.note("logged out")
		},
	}
}

// revokeLogin revokes the token of a login.
func revokeLogin(ctx context.Context, api *client.API, name string) error {
	listed, err := api.Tokens.ListTokens(ctx, connect.NewRequest(&statev1.ListTokensRequest{}))
	if err != nil {
		return err
	}
	for _, t := range listed.Msg.GetTokens() {
		if !strings.Contains(t.GetName(), name) || t.GetRevoked() {
			continue
		}
		_, err := api.Tokens.RevokeToken(ctx, connect.NewRequest(&statev1.RevokeTokenRequest{Id: t.GetId()}))
		return err
	}
	return fault.New(errcode.NotFound, "none of your tokens is named after the login %s: revoke it with "+
		"`lockstep token revoke`, see `lockstep token list`", strconv.Quote(name))
}
