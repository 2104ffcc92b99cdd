// Package composetest checks docker-compose.yml where no Docker engine is at hand.
package composetest
