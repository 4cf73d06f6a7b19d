package postgres

import (
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"

	"lockstep.internal/libs/config"
)

// Settings are the settings of a service's database.
type Settings struct {
	URL            config.URL    `yaml:"url" help:"PostgreSQL connection string; set this or url_file"`
	URLFile        config.Secret `yaml:"url_file" help:"file with the connection string"`
	PasswordFile   config.Secret `yaml:"password_file" help:"file with the password, instead of one in the connection string; read for each connection, may have any characters"`
	MaxConnections int           `yaml:"max_connections" help:"connections of this process; 0 = 10, or pool_max_conns of the connection string"`
}

// Validate returns the errors of the settings.
func (s Settings) Validate() []error {
	var errs []error
	if (s.URL == "") != s.URLFile.IsSet() {
		errs = append(errs, config.Invalid("url", "set either url or url_file"))
	}
	if s.MaxConnections < 0 {
		errs = append(errs, config.Invalid("max_connections", "%d is negative", s.MaxConnections))
	}
	return errs
}

// Open returns the pool of a service, whose schema has the service's name. See [Open].
func (s Settings) Open(service string) (*pgxpool.Pool, error) {
	cfg := Config{
		URL: s.URL.Reveal(), Schema: service, ApplicationName: "lockstep-" + service, MaxConnections: int32(s.MaxConnections),
	}
	if s.URLFile.IsSet() {
		var err error
		if cfg.URL, err = s.URLFile.Read(); err != nil {
			return nil, fmt.Errorf("database.url_file: %w", err)
		}
	}
	if s.PasswordFile.IsSet() {
		cfg.Password = func() (string, error) {
			password, err := s.PasswordFile.Read()
			if err != nil {
				return "", fmt.Errorf("database.password_file: %w", err)
			}
			return password, nil
		}
	}
	return Open(cfg)
}
